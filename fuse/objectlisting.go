package fuse

import (
	"slices"
	"syscall"
	"time"

	raw "github.com/hanwen/go-fuse/v2/fuse"

	"github.com/artifactfs/artifactfs/internal/proc"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/odb/named"
)

// lists reports whether the process of a thread needs a list of all objects. For other programs the directories XX are empty: git gc,
// prune and repack would read all blobs that they find in a list.
func lists(tid uint32) bool {
	args, err := proc.Of(int(tid)).Args()
	return err == nil && (slices.Contains(args, "fsck") || slices.Contains(args, "--batch-all-objects"))
}

// listEnd is the time after which the kernel drops a listing of a directory XX, because another program gets another one.
const listEnd = 10 * time.Millisecond

// list calls emit for each entry of a directory, beginning at in.Offset, until emit returns false because the reply is full.
func (o *objectDir) list(in *raw.ReadIn, emit func(raw.DirEntry) bool) {
	off := in.Offset
	next := func(e raw.DirEntry) bool {
		e.Off++
		return e.Off <= off || emit(e)
	}
	if !next(raw.DirEntry{Name: ".", Ino: in.NodeId, Mode: syscall.S_IFDIR}) ||
		!next(raw.DirEntry{Name: "..", Ino: o.parent(in.NodeId), Mode: syscall.S_IFDIR, Off: 1}) {
		return
	}
	if in.NodeId < fanOutNode || in.NodeId >= fanOutNode+256 {
		return
	}
	node := in.NodeId
	o.notices.Go(func() {
		select {
		case <-time.After(listEnd):
			o.f.device.tellKernel(func() raw.Status { return o.f.server.InodeNotify(node, 0, 0) })
		case <-o.f.gone:
		}
	})
	if !lists(in.Pid) {
		return
	}
	at := uint64(2)
	for id := range o.objects.From(byte(in.NodeId-fanOutNode), object.ID{}) {
		if !next(raw.DirEntry{Name: id.String()[2:], Ino: kindLink | named.Prefix(id), Mode: syscall.S_IFLNK, Off: at}) {
			return
		}
		at++
	}
}
