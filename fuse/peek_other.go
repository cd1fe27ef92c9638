//go:build !amd64

package fuse

// legacyUse: newer architectures have no old calls.
func (c sysCall) legacyUse() use { return useAny }
