"""The gateway: what may leave a sandbox, and how it is looked at on its way. Nothing is imported here but by who asks
for it: neither the SDK nor a sandbox without a policy needs what this stands on."""
