package csi

import "golang.org/x/sys/unix"

// What a mount takes (doc/internals/daemon/many-mounts.md), with a margin for what its programs read.
const (
	memoryOfMount = 4 << 20 // bytes: measured are 1.3 MiB at rest
	filesOfMount  = 32      // descriptors: measured are 20
	mostVolumes   = 10_000
)

// MaxVolumes returns how many volumes this host can have: half of its memory, and the descriptors that a process can open, must suffice
// for them.
func MaxVolumes() int64 {
	most := int64(mostVolumes)
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		most = min(most, int64(info.Totalram)*int64(info.Unit)/2/memoryOfMount)
	}
	var files unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &files) == nil {
		most = min(most, int64(min(files.Max, 1<<30))/filesOfMount)
	}
	return max(most, 1)
}
