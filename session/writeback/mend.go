package writeback

import (
	"context"

	"github.com/artifactfs/artifactfs/session"
)

// Mend repairs broken refs of a session's Repo, using the values that the ledger records of the session remote, and
// returns the repaired refs. remote is the session remote's URL without secrets; "": the Repo is the session remote.
func Mend(ctx context.Context, repo *session.Repo, remote string) ([]session.Mended, error) {
	l, err := readLedger(repo, remote)
	if err != nil {
		return nil, err
	}
	m, err := metaOf(repo)
	if err != nil {
		return nil, err
	}
	return repo.MendRefs(ctx, l.known(l.layout(m)))
}
