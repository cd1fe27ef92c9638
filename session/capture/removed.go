package capture

import (
	"context"
	"fmt"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/session"
)

// takeRemoved adds the files that were just removed or overwritten to the tree of the checkpoint, and returns a message
// with their number. The remembered tree is without them, so the next checkpoint shows the removal. The caller calls
// done after the checkpoint is written or has failed; it releases the contents of the files. If saved is false, the
// files stay for the next checkpoint.
func (c *Capturer) takeRemoved(ctx context.Context, s *shot) (done func(saved bool), said string, err error) {
	// Called after the freeze, so that every file missing in it is among them.
	removed, lost, done := c.o.Tree.TakeRemoved()
	e := s.edit
	// The files of the frozen tree are done: contents is called again for the removed ones only.
	e.plain, e.cleaned = nil, nil
	n := 0
	for i := range removed {
		f := &removed[i].FrozenEntry
		if removed[i].Lost() {
			lost++
			continue
		}
		// A removed file is held under the same rules as an existing one.
		why, err := e.judge(ctx, f)
		if err == nil && (why == "" && !e.v.inSkipped(f.Path)) {
			n++
			_, err = e.entry(ctx, f)
		}
		if err != nil {
			return done, "", fmt.Errorf("keep removed %s: %w", f.Path, err)
		}
	}
	if n+lost == 0 {
		return done, "", nil
	}
	if n > 0 {
		if err := e.contents(ctx); err != nil {
			return done, "", err
		}
		s.shown, err = e.trees.write(func(id object.ID, content []byte) error {
			s.out.raw(id, object.Tree, content)
			return nil
		})
		// The comparison with the previous checkpoint reads these trees before they are written.
		for id, content := range s.out.trees {
			c.pending[id] = content
		}
	}
	said = fmt.Sprintf("before %d files were removed or overwritten", n)
	if n == 1 {
		said = "before 1 file was removed or overwritten"
	}
	if lost > 0 {
		said += fmt.Sprintf(", without %d more that there was no room to keep", lost)
	}
	return done, said, err
}

// inSkipped reports whether path is below a directory that is skipped.
func (v *view) inSkipped(path string) bool {
	for dir := parent(path); dir != ""; dir = parent(dir) {
		if v.skip(dir) {
			return true
		}
	}
	return false
}

// saved reports to the Tree which changes are in a checkpoint now, and which ignored directories checkpoints do not
// hold.
func (c *Capturer) saved(s *shot) {
	ignored := map[string]bool{}
	for path, l := range c.left.all {
		if n := len(path); l.Why == session.Ignored && n > 0 && path[n-1] == '/' {
			ignored[path[:n-1]] = true
		}
	}
	c.o.Tree.Saved(s.view.frozen, ignored)
}
