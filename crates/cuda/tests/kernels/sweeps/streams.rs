//! The device's default stream, which other users of the device have too.

use super::Scale;
use pinion_cuda::Device;

/// Copies in the order of the calls; when what borrowed the stream is gone, the stream is not.
pub(crate) fn borrowed_stream(device: &Device, scale: Scale) {
    let own = device.stream().expect("a stream");
    let len = 4096;
    let spans = [0; 3].map(|_| device.alloc(len).expect("memory"));
    for case in 0..scale.cases as u8 {
        own.upload(spans[0], &vec![case + 1; len]).expect("a copy");
        let borrowed = device.default_stream().expect("every device has one");
        borrowed.copy(spans[1], spans[0]).expect("a copy");
        borrowed.copy(spans[2], spans[1]).expect("a copy");
        borrowed.synchronize().expect("the copies end");
        let mut seen = vec![0; len];
        own.download(&mut seen, spans[2]).expect("a copy");
        assert_eq!(seen, vec![case + 1; len]);
    }
}
