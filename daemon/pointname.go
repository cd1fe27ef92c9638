package daemon

import (
	"context"

	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/resume"
)

// findPoint returns the checkpoint of a session that a name means; "" is the newest. It is the one place where the daemon
// reads names of checkpoints. m is the session's mount, nil if it is not mounted: for HEAD a checkpoint is made there if the
// commit has none yet, because one follows a commit only a moment later.
func findPoint(ctx context.Context, repo *session.Repo, m *mount, name string) (session.Point, error) {
	if name == "HEAD" && m != nil && m.writable() && m.agent.Active() {
		if err := m.agent.CheckpointHead(ctx, repo); err != nil {
			return session.Point{}, err
		}
	}
	return resume.Find(repo, name, m.contents(ctx))
}
