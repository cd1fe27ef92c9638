package worktree

import (
	"context"
	"syscall"

	"github.com/artifactfs/artifactfs/worktree/overlay"
	"github.com/artifactfs/artifactfs/worktree/writers"
)

// Kernel counts the references that the kernel holds to nodes. Package fuse calls it for each node in a reply, and for
// each FORGET request. The counts for nodes of the base tree are stored in the inode table, and the other counts in the
// overlay, so that all of them survive a takeover. The inode table and the overlay synchronize access to the counts.
type Kernel struct {
	gate    *gate
	view    *view
	writing *writers.Set // files that programs may be writing to
}

// Remember increments the lookup count of a node, because a reply to the kernel contains the node.
func (k *Kernel) Remember(n Node) {
	if k.view.layer == nil || !k.gate.enter() {
		return
	}
	defer k.gate.exit()
	if n.Own() {
		k.view.layer.Remember(n)
	} else if r, ok := k.view.base.Table.Record(n); ok {
		r.Remember()
	}
}

// Unknown returns the files in a base directory that the kernel does not know, because it has no look-up of them, and
// whose contents are unchanged and on this host. It leaves out empty files, those of more than most bytes, and those
// that were moved or have several names. missing is the number of files whose contents are not on this host. subs are
// the subdirectories.
func (k *Kernel) Unknown(ctx context.Context, dir Node, most int64) (files []Attr, subs []Node, missing int) {
	if k.view.layer == nil || !k.gate.enter() {
		return nil, nil, 0
	}
	defer k.gate.exit()
	// a failure is ignored here, because the program that lists the directory gets the same error
	_ = k.view.readDir(ctx, dir, 0, func(e Entry) bool {
		r, ok := k.view.base.Table.Record(e.Node)
		switch {
		case e.Node.Own() || !ok:
		case r.Dir() != dir: // the file was moved to this directory from another one
		case e.Mode&syscall.S_IFMT == syscall.S_IFDIR:
			subs = append(subs, e.Node)
		case e.Mode&syscall.S_IFMT != syscall.S_IFREG || r.Known():
		case !k.view.base.Here(e.Node):
			missing++
		default:
			if in, err := k.view.inode(e.Node); err == nil && in.Size == overlay.SizeOfBase && in.Nlink == 1 {
				if a := k.view.base.Describe(in); a.Size > 0 && a.Size <= most {
					files = append(files, a)
				}
			}
		}
		return true
	})
	return files, subs, missing
}

// IsUnknown reports whether the kernel has no look-up of a base node, and the function in returns true for the
// directory that contains the node in the base tree.
func (k *Kernel) IsUnknown(n Node, in func(dir Node) bool) bool {
	if !k.gate.enter() {
		return false
	}
	defer k.gate.exit()
	r, ok := k.view.base.Table.Record(n)
	return ok && !r.Known() && in(r.Dir())
}

// Searched reports whether the process of the request ctx is a program that reads all files below directories (ok), and
// whether dir, a base directory, is one of these (target).
func (k *Kernel) Searched(ctx context.Context, dir Node) (target, ok bool) {
	if !k.gate.enter() {
		return false, false
	}
	defer k.gate.exit()
	return k.view.base.Searched(ctx, dir)
}

// Arriving reports whether the contents of all files below a directory have been requested for a program that reads
// them all (see Searched), and some have not arrived yet.
func (k *Kernel) Arriving() bool { return k.view.base.Arriving() }

// Forget subtracts the number lookups from the lookup count of a node, as a FORGET request of the kernel demands. A
// node without lookups and without a name is released. Kernel need not count open files, because the kernel holds a
// lookup of a file as long as a program has the file open.
func (k *Kernel) Forget(n Node, lookups uint64) {
	if k.view.layer == nil || !k.gate.enter() {
		return
	}
	defer k.gate.exit()
	if n.Own() {
		if k.view.layer.Forget(n, lookups) {
			k.writing.Forget(n)
		}
		return
	}
	r, ok := k.view.base.Table.Record(n)
	if !ok {
		return
	}
	if r.Forget(lookups) {
		k.writing.Forget(n)
		k.view.layer.Release(n)
	}
}
