package catalog

import (
	"context"

	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/resume"
)

// Find returns the checkpoint that name stands for; "" is the newest. All names of checkpoints are resolved by this
// function. m is the session's mount, or nil if it is not mounted. For HEAD, Find creates a checkpoint of the
// commit if there is none, because the automatic one follows a commit only a moment later.
func Find(ctx context.Context, repo *session.Repo, m *Mounted, name string) (session.Checkpoint, error) {
	// HEAD as a checkpoint name means the checkpoint of the current commit.
	if name == "HEAD" && m != nil && m.Writable && m.Agent.Active() {
		if err := m.Agent.CheckpointHead(ctx, repo); err != nil {
			return session.Checkpoint{}, err
		}
	}
	return resume.Find(repo, name, m.Contents(ctx))
}
