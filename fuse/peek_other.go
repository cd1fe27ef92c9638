//go:build !amd64

package fuse

// legacyUse returns useAny, because newer architectures do not have those system calls.
func (c sysCall) legacyUse() use { return useAny }
