package main

import (
	"fmt"
	"path/filepath"
	"time"
)

// jj uses jj and git in the same mount, and checks that bookmarks are branches, and that checkpoints contain the files of the
// tree.
func (r *rig) jj(o carryOptions) error {
	if o.jj == "" {
		return nil
	}
	for _, place := range []string{"outside", "inside"} {
		state := r.path("state")
		m, _, err := r.mount(state, "--session", "work", "--wait", "git", "--prefetch", "none", "--git-dir", place)
		if err != nil {
			return err
		}
		remote := filepath.Join(state, "mounts", m.ID, "session.git")
		r.env = append(r.env, "JJ_CONFIG="+r.path("jj.toml"), "JJ_USER=somebody", "JJ_EMAIL=somebody@localhost.invalid")
		id, err := r.sh(m.Dir, fmt.Sprintf("%[1]s git init --colocate; echo new >new; %[1]s describe -m new; %[1]s new; %[1]s bookmark create topic -r @-; echo more >>new; %[1]s squash; %[1]s bookmark set topic -r @-; echo open >open; %[1]s status; git rev-parse topic", o.jj))
		if err != nil {
			return err
		}
		took, err := await(remote, "refs/heads/topic", id[len(id)-40:], time.Minute)
		if err != nil {
			return err
		}
		var p madeCheckpoint
		if _, err := r.afs(state, &p, "checkpoint", m.Dir); err != nil {
			return err
		}
		is, err := r.look(m.Dir)
		if err != nil {
			return err
		}
		r.row("jj", "git directory "+place, fmt.Sprintf("a bookmark is a branch on the session remote after %s; the checkpoint holds the tree: %v", seconds(took), p.Tree == is.Tree), "1 s", took < time.Second && p.Tree == is.Tree)
		if err := r.sound(remote); err != nil {
			return err
		}
		if err := r.end(state); err != nil {
			return err
		}
	}
	return nil
}
