package writeback

import "github.com/artifactfs/artifactfs/session"

// Look tells how far a session remote is behind without a Queue: from what the last one has noted. Remote is its URL
// without secrets.
func Look(repo *session.Repo, remote string) (Status, error) {
	l, err := readLedger(repo, remote)
	if err != nil {
		return Status{}, err
	}
	refs, err := repo.Refs("refs/")
	if err != nil {
		return Status{}, err
	}
	m, err := metaOf(repo)
	if err != nil {
		return Status{}, err
	}
	layout := l.layout(m)
	return Status{Mode: l.mode, Traffic: l.traffic, LastSync: l.synced, Pending: l.pending(sentOf(refs, layout), layout), Layout: layout}, nil
}
