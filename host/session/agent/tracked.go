package agent

import (
	"context"
	"fmt"
	"os"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/refname"
	"github.com/artifactfs/artifactfs/session"
)

// tracked updates the remote-tracking ref in the mount's git directory for a branch of the mounted remote, after this
// session has pushed the branch (see writeback.QueueOptions.Tracked). It does not change the ref if git has fetched a
// newer value meanwhile.
func (p place) tracked(ctx context.Context, repo *session.Repo, branch string, old, now object.ID) error {
	ref := refname.Tracking(p.gitDir, branch)
	shown, err := session.NewRefDir(p.gitDir, repo.Format()).Ref(ref)
	if err != nil || shown == now {
		return err
	}
	if !shown.IsZero() && shown != old && (now.IsZero() || !session.Within(repo, now, shown)) {
		return nil
	}
	// The user's hooks must not run, because the user did not start this command. The old value of the command is the one
	// that was read.
	args := []string{"-c", "core.hooksPath=" + os.DevNull, "update-ref", "-m", "update by push"}
	switch {
	case now.IsZero():
		args = append(args, "-d", ref, shown.String())
	case shown.IsZero():
		args = append(args, ref, now.String(), "")
	default:
		args = append(args, ref, now.String(), shown.String())
	}
	if err := gitcmd.Run(gitAt(ctx, p.gitDir, args...)); err != nil {
		return fmt.Errorf("update ref %s: %w", ref, err)
	}
	return nil
}
