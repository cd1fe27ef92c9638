package worktree

import (
	"context"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/artifactfs/artifactfs/worktree/carry"
	"github.com/artifactfs/artifactfs/worktree/overlay"
)

// Seal is a seal of the contents of a Tree in progress: it takes files as they are at the moment of a freeze, for a
// fork. The checkpoint from which the fork starts is made of the same freeze (FreezeOptions.Seal), so that no path is
// lost between both.
type Seal struct {
	view    *view
	sealing *overlay.Sealing
	end     func()
}

// BeginSeal prepares a seal, whose contents are moved to the share with this ID (Options.Shares). Its moment is that of
// the freeze that is called with FreezeOptions.Seal. The caller must call Close, and until then Tree.Close waits.
func (o *Overlay) BeginSeal(id string) (*Seal, error) {
	if !o.gate.enter() {
		return nil, ErrClosed
	}
	if o.view.layer == nil {
		o.gate.exit()
		return nil, syscall.EROFS
	}
	sealing, err := overlay.BeginSeal(o.view.layer, id)
	if err != nil {
		o.gate.exit()
		return nil, err
	}
	return &Seal{o.view, sealing, sync.OnceFunc(func() { sealing.Close(); o.gate.exit() })}, nil
}

// Close ends the seal, at any time. A second call does nothing.
func (s *Seal) Close() { s.end() }

// atMoment calls f at the moment of the freeze. If f returns true, FreezeOptions.Seal is sealed at this moment.
func (z *freezing) atMoment(f func(r overlay.Reader) bool) (paused time.Duration) {
	if z.o.Seal != nil {
		return z.o.Seal.sealing.Freeze(f)
	}
	return z.view.layer.Freeze(func(r overlay.Reader) { f(r) })
}

// Take makes the sealed contents available to other overlays, and returns the files at some paths as they were at the
// moment of the freeze, as carry.Take does.
func (s *Seal) Take(paths []string, choose func(path string, isDir bool) carry.Choice) (*carry.Files, error) {
	if err := s.sealing.Publish(); err != nil {
		return nil, err
	}
	paths = slices.DeleteFunc(slices.Clone(paths), func(path string) bool {
		return isWithin(strings.TrimSuffix(path, "/"), gitFile)
	})
	files := carry.Take(carry.Moment{Names: s.sealing.Names(), Inodes: s.sealing.Inodes(), Base: s.view.base,
		Segments: s.sealing.Segments()}, paths, choose)
	if err := s.sealing.Settle(files.Unsettled); err != nil {
		return nil, err
	}
	return files, nil
}

// Reclaim removes sealed contents that nobody uses any more, as overlay.Reclaim does. It does nothing in a Tree without
// an overlay.
func (o *Overlay) Reclaim(ctx context.Context, sole overlay.Sole) (overlay.Reclaimed, error) {
	if !o.gate.enter() {
		return overlay.Reclaimed{}, ErrClosed
	}
	defer o.gate.exit()
	if o.view.layer == nil {
		return overlay.Reclaimed{}, nil
	}
	return overlay.Reclaim(ctx, sole, o.view.layer)
}

// Full returns a channel that has an element if a change has found no disk space, and Reclaim may free some.
func (o *Overlay) Full() <-chan struct{} { return o.full }

// Adopt adds the files that Seal.Take has taken from another Tree to a new one, as carry.Files.Add does. The Tree must
// have been opened with c.Segments, and the kernel knows no path of it yet. The change journal records the paths.
func (o *Overlay) Adopt(ctx context.Context, c *carry.Files) error {
	if !o.gate.enter() {
		return ErrClosed
	}
	defer o.gate.exit()
	if o.view.layer == nil {
		return syscall.EROFS
	}
	return c.Add(ctx, adopting{o}, o.view.layer)
}

// adopting lets package carry use a working tree.
type adopting struct{ o *Overlay }

// Find implements carry.Tree.
func (a adopting) Find(ctx context.Context, dir Node, name string) (overlay.Inode, error) {
	return a.o.view.find(ctx, dir, name)
}

// Note implements carry.Tree.
func (a adopting) Note(paths []string) (land func()) { return a.o.changes.notePaths(paths) }
