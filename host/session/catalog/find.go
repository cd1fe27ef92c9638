package catalog

import (
	"context"

	"github.com/artifactfs/artifactfs/host/session/resume"
	"github.com/artifactfs/artifactfs/session"
)

// Find returns the checkpoint that name refers to in the session repository; an empty name refers to the newest
// checkpoint. m is the session's mount, or nil if the session is not mounted. For the name HEAD, Find creates a
// checkpoint if the current commit has none yet, because the automatic checkpoint of a new commit is created with a
// short delay.
func Find(ctx context.Context, repo *session.Repo, m *Mounted, name string) (session.Checkpoint, error) {
	// The name HEAD refers to the checkpoint of the commit that HEAD points to.
	if name == "HEAD" && m != nil && m.Writable && m.Agent.Active() {
		if err := m.Agent.CheckpointHead(ctx, repo); err != nil {
			return session.Checkpoint{}, err
		}
	}
	return resume.Find(repo, name, m.Contents(ctx))
}
