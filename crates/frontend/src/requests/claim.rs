//! From a client's key and `user` to the tenant on whose account its request runs.
//!
//! The engine knows tenants by a number only. It is the same at every frontend, and it is no secret: a client
//! can send another's `user` and be counted as that tenant.

use pinion_config::{FairShare, Fairness};
use pinion_protocol::Claim;

/// The claim of a request that came with the key of this index, if keys are asked for.
pub(crate) fn claim(fairness: &Fairness, key: Option<usize>, user: Option<&str>, priority: i32) -> Claim {
    let key_tenant = key.map_or(0, |index| index as u64 + 1);
    let tenant = match (fairness.by, user) {
        (FairShare::Off, _) => 0,
        (FairShare::Key, _) | (FairShare::User, None) => key_tenant,
        (FairShare::User, Some(user)) => hash(key_tenant, user),
    };
    Claim { tenant, priority, weight: fairness.weight(key) }
}

/// FNV-1a over the key's tenant and the name; above all keys' own tenants.
fn hash(key_tenant: u64, user: &str) -> u64 {
    let fold = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let start = key_tenant.to_le_bytes().iter().fold(0xcbf2_9ce4_8422_2325, fold);
    user.as_bytes().iter().fold(start, fold) | 1 << 63
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_is_none_a_key_or_a_user_of_a_key() {
        let tenant = |by, key, user| claim(&Fairness { by, key_weights: vec![3, 5] }, key, user, 0).tenant;
        for by in [FairShare::Off, FairShare::Key] {
            assert_eq!(tenant(by, None, Some("a")), 0, "{by:?}");
        }
        assert_eq!(tenant(FairShare::Off, Some(1), Some("a")), 0);
        assert_eq!(tenant(FairShare::Key, Some(1), Some("a")), 2);
        assert_eq!(tenant(FairShare::User, Some(1), None), 2);
        let users: Vec<u64> = [(None, "a"), (None, "b"), (Some(0), "a"), (Some(1), "a"), (Some(1), "")]
            .map(|(key, user)| tenant(FairShare::User, key, Some(user)))
            .into();
        assert!(users.iter().all(|user| *user > 64), "{users:?}");
        assert!((1..users.len()).all(|at| !users[..at].contains(&users[at])), "{users:?}");
    }

    #[test]
    fn a_key_brings_its_weight_and_the_request_its_priority() {
        let fairness = Fairness { by: FairShare::Key, key_weights: vec![3, 5] };
        let claims = [None, Some(0), Some(1)].map(|key| claim(&fairness, key, None, -7));
        assert_eq!(claims.map(|claim| (claim.weight, claim.priority)), [(1, -7), (3, -7), (5, -7)]);
    }
}
