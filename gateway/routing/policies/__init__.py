"""Every policy is one small module behind `gateway.routing.policy.Policy`; published ones keep their
published defaults."""
