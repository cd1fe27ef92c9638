//go:build !amd64

package caller

// legacyUse returns useAny, because newer architectures do not have the system calls of caller_amd64.go.
func (c sysCall) legacyUse() use { return useAny }

// legacyChanges returns false, because newer architectures do not have the system calls of caller_amd64.go.
func (c sysCall) legacyChanges() bool { return false }
