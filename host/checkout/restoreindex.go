package checkout

import (
	"github.com/artifactfs/artifactfs/git/gitdir"
	"github.com/artifactfs/artifactfs/git/index"
	"github.com/artifactfs/artifactfs/worktree"
)

// restoreIndex updates the index x for the restored files: an entry whose blob was restored becomes valid, with the new
// times of the file. s has the index entries to restore, or is nil if the index is not restored. The first results in
// done belong to grafts, in the same order.
func restoreIndex(x *index.Index, s *gitdir.Staged, grafts []worktree.Graft, done worktree.GraftResult, device uint32) {
	if s != nil {
		x.Apply(s.Changes)
	}
	restored := map[string]int{}
	for i, g := range grafts {
		if g.Mode != 0 && !done.Done[i].Kept {
			restored[g.Path] = i
		}
	}
	spared := map[string]bool{}
	for i := range x.Entries {
		e := &x.Entries[i]
		at, ok := restored[e.Path]
		if !ok || e.Stage != 0 || e.IntentToAdd || e.Mode != grafts[at].Mode || e.ID != grafts[at].ID {
			continue
		}
		a := done.Done[at].Attr
		e.Valid = x.Token != "" && !done.Since.All
		e.Stat = index.Stat{Ctime: a.Ctime, Mtime: a.Mtime, Dev: device, Ino: uint32(a.Node), UID: a.UID, GID: a.GID}
		spared[e.Path] = e.Valid
	}
	if s != nil && len(s.Others) > 0 {
		(&gitdir.Staged{Others: s.Others}).Apply(x)
	}
	if !done.Since.All {
		x.ApplyMonitor(done.Since.Token, done.Since.Paths, func(path string) bool { return spared[path] })
	}
}
