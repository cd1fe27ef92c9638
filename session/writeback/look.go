package writeback

import "github.com/artifactfs/artifactfs/session"

// Look returns the status of a session remote without a Queue, from the ledger that the last Queue wrote. The parameter remote is
// the URL of the session remote without secrets.
func Look(repo *session.Repo, remote string) (Status, error) {
	l, err := readLedger(repo, remote)
	if err != nil {
		return Status{}, err
	}
	refs, err := repo.Refs("refs/")
	if err != nil {
		return Status{}, err
	}
	layout := l.layout()
	return Status{Mode: l.mode, Traffic: l.traffic, LastSync: l.synced, Pending: l.pending(sentOf(refs, layout)), Layout: layout}, nil
}
