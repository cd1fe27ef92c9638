package csi

import "golang.org/x/sys/unix"

// Resources that one mount needs (doc/internals/daemon/many-mounts.md), with a margin for the files that its programs
// read.
const (
	memoryOfMount = 4 << 20 // in bytes; an idle mount was measured to need 1.3 MiB
	filesOfMount  = 32      // number of file descriptors; a mount was measured to need 20
	mostVolumes   = 10_000
)

// MaxVolumes returns the maximum number of volumes of this host, so that half of its memory, and the descriptors that a
// process can open, suffice for them.
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
