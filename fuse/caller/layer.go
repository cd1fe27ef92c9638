package caller

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/internal/mountinfo"
	"github.com/artifactfs/artifactfs/internal/proc"
)

// mostDescriptors is the number of descriptors of a process that servesFiles looks at. A server of a FUSE file system
// opens /dev/fuse early, so the descriptor has a low number.
const mostDescriptors = 64

// OnLayer reports whether the thread tid uses this file system through another file system that is stacked on it and
// stores changes elsewhere, such as overlayfs or fuse-overlayfs. own returns the device number of this file system.
//
// Only the kernel's call stack shows this for certain, and only root may read it. A daemon of another user checks the
// working directory of the process and, if that is outside of this file system, the mounts that the process sees.
func OnLayer(tid uint32, own func() uint64) bool {
	thread := proc.Of(int(tid))
	if _, ok := blockedIn(thread); ok {
		if stack, err := thread.Stack(); err == nil && len(stack) > 0 {
			return bytes.Contains(stack, []byte("] ovl_")) || servesFiles(thread)
		}
	}
	if device, _, err := thread.DirNumber(); err == nil && device == own() {
		return false
	}
	if servesFiles(thread) {
		return true
	}
	mounts, err := os.ReadFile(thread.MountTable())
	return err == nil && layered(mountinfo.Parse(mounts), own())
}

// servesFiles reports whether a process serves a FUSE file system. Such a process probably makes its requests on behalf
// of another process.
func servesFiles(process proc.Process) bool {
	fds, err := process.Descriptors()
	if err != nil {
		return false
	}
	for _, fd := range fds[:min(len(fds), mostDescriptors)] {
		if target, err := os.Readlink(process.FDPath(fd)); err == nil && target == "/dev/fuse" {
			return true
		}
	}
	return false
}

// layered reports whether a mount table lists an overlay that has a layer in the file system with the given device
// number. If the path of a layer is not known, layered assumes that the layer is in this file system.
func layered(table mountinfo.Table, device uint64) bool {
	return slices.ContainsFunc(table, func(m mountinfo.Mount) bool {
		if m.Type != "overlay" {
			return false
		}
		for _, option := range m.Super {
			key, value, _ := strings.Cut(option, "=")
			if key = strings.TrimSuffix(key, "+"); key != "lowerdir" {
				continue
			}
			for layer := range strings.SplitSeq(value, ":") {
				if at, ok := table.Above(filepath.Clean(layer)); !filepath.IsAbs(layer) || ok && at.Device == device {
					return true
				}
			}
		}
		return false
	})
}
