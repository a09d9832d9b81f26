//! Sizes that steps are padded to: few enough to capture a graph and choose an algorithm for each before ready, close
//! enough that little is computed for nothing.

/// 1, 2, 4, 8, then powers of two and their halves between, up to `most`, which is always one of them.
pub(super) fn buckets(least: u32, most: u32) -> Vec<u32> {
    let mut all = Vec::new();
    let mut power = 1u32;
    while power < most {
        all.push(power);
        if power >= 8 && power + power / 2 < most {
            all.push(power + power / 2);
        }
        power = power.saturating_mul(2);
    }
    all.push(most);
    all.retain(|&bucket| bucket >= least.min(most));
    all
}

/// The first bucket that holds `count`, with its index.
pub(super) fn bucket_for(buckets: &[u32], count: u32) -> Option<(usize, u32)> {
    let index = buckets.partition_point(|&bucket| bucket < count);
    buckets.get(index).map(|&bucket| (index, bucket))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_count_has_a_bucket_and_little_is_padded() {
        assert_eq!(buckets(1, 1), [1]);
        assert_eq!(buckets(1, 64), [1, 2, 4, 8, 12, 16, 24, 32, 48, 64]);
        assert_eq!(buckets(16, 100), [16, 24, 32, 48, 64, 96, 100]);
        assert_eq!(buckets(16, 5), [5]);
        for most in 1..300 {
            let all = buckets(1, most);
            assert!(all.is_sorted() && all.last() == Some(&most), "{most}: {all:?}");
            for count in 1..=most {
                let (index, bucket) = bucket_for(&all, count).expect("a bucket");
                assert!(bucket >= count && all[index] == bucket, "{count} of {most}: {bucket}");
                assert!(count <= 8 || bucket - count <= count / 2, "{count} of {most}: {bucket}");
            }
            assert_eq!(bucket_for(&all, most + 1), None);
        }
    }
}
