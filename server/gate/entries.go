package gate

import (
	"errors"
	"fmt"

	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/session/approval"
	"github.com/artifactfs/artifactfs/session/cacheentry"
	"github.com/artifactfs/artifactfs/session/reffile"
)

// checkEntry decides about a cache entry. Reviewers read test results in entries, so an entry must name the user of the
// token, and the session to which the token is bound.
func (j *judge) checkEntry(u records.RefUpdate) (refused, err error) {
	var e cacheentry.Entry
	text, err := j.file(reffile.File{Ref: u.Name, Name: cacheentry.InfoFile}, u.New)
	if err == nil {
		e, err = cacheentry.Parse(u.Name, text)
	}
	switch actor := Actor(j.Token); {
	case invalid(err), errors.Is(err, cacheentry.ErrDamaged), errors.Is(err, cacheentry.ErrNewer):
		return approval.Refused(fmt.Sprintf("cache entry cannot be read: %v", err)), nil
	case err != nil:
		return nil, err
	case e.Actor != actor:
		return approval.Refused(fmt.Sprintf("cache entry is by %.100q, but the token is of %s", e.Actor, actor)), nil
	case j.Token.Session != "" && e.Session != j.Token.Session:
		return approval.Refused(fmt.Sprintf("cache entry names the session %.100q, but the token is for session %s",
			e.Session, j.Token.Session)), nil
	}
	return nil, nil
}
