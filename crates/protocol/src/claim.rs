//! A request's claim on the engine: how important it is, and on whose account it runs.

use crate::limits::TENANT_WEIGHT_MAX;
use crate::wire::Malformed;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Scheduling class of a request: tenant and priority. It crosses the rings as it is; receivers call
/// [`Claim::checked`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Claim {
    /// Tenant for fair sharing; 0 is the default tenant.
    pub tenant: u64,
    /// A lower value is served earlier.
    pub priority: i32,
    /// The tenant's part of the service relative to others, 1 ..= [`TENANT_WEIGHT_MAX`].
    pub weight: u32,
}

impl Default for Claim {
    fn default() -> Self {
        Claim { tenant: 0, priority: 0, weight: 1 }
    }
}

impl Claim {
    /// The claim, if its weight is one.
    pub fn checked(self) -> Result<Claim, Malformed> {
        if (1..=TENANT_WEIGHT_MAX).contains(&self.weight) { Ok(self) } else { Err(Malformed("weight")) }
    }
}
