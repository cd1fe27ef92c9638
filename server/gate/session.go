package gate

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/approval"
	"github.com/artifactfs/artifactfs/session/reffile"
	"github.com/artifactfs/artifactfs/session/thin"
)

// metaPrefix is the prefix of the refs whose removal deletes a session.
var metaPrefix = session.MetaRef("")

// controls reports whether a token is one for the REST API, of an owner or an administrator.
func controls(t records.Token) bool {
	return t.Role == records.OwnerToken || t.Role == records.AdminToken
}

// checkPolicy decides about the policy.
func (j *judge) checkPolicy(u records.RefUpdate) (refused, err error) {
	switch {
	case u.Name != approval.PolicyRef && u.Removes():
		return nil, nil
	case u.Name != approval.PolicyRef:
		return approval.Refused("there can be no refs below " + approval.PolicyRef), nil
	case !controls(j.Token):
		return approval.Refused("only an owner or admin token can change the policy"), nil
	case u.Removes():
		return nil, nil
	}
	text, err := j.file(reffile.File{Ref: u.Name, Name: approval.PolicyFile}, u.New)
	if err == nil {
		_, err = approval.ParsePolicy(text)
	}
	if invalid(err) {
		return approval.Refused(err.Error()), nil
	}
	return nil, err
}

// checkApprovals decides about new records of approvals.
func (j *judge) checkApprovals(ctx context.Context, u records.RefUpdate) (refused, err error) {
	name, ok := strings.CutPrefix(u.Name, approval.Prefix)
	if !ok || session.ValidName(name) != nil {
		return approval.Refused("the refs below " + approval.Prefix + " have the names of sessions"), nil
	}
	f := reffile.File{Ref: u.Name, Name: approval.LogFile}
	var old []byte
	if !u.Creates() {
		if j.refs.ID(u.Name) != u.Old {
			return errStale, nil
		}
		forced, err := j.Forced(ctx, u)
		if err != nil {
			return nil, err
		}
		if forced {
			return approval.Refused("approvals can only be fast-forwarded"), nil
		}
		if old, err = j.file(f, u.Old); invalid(err) {
			return approval.Refused(fmt.Sprintf("the approvals cannot be read: %v", err)), nil
		} else if err != nil {
			return nil, err
		}
	}
	text, err := j.file(f, u.New)
	var log approval.Log
	if err == nil {
		if !bytes.HasPrefix(text, old) {
			return approval.Refused("records of approvals cannot be changed or removed, only added"), nil
		}
		log, err = approval.ParseLog(name, text)
	}
	if invalid(err) {
		return approval.Refused(err.Error()), nil
	} else if err != nil {
		return nil, err
	}
	for _, r := range log.Records[bytes.Count(old, []byte("\n")):] {
		if refused := j.checkRecord(r); refused != nil {
			return refused, nil
		}
	}
	return nil, nil
}

// checkRecord returns an error unless the token that pushes a new record may have made it.
func (j *judge) checkRecord(r approval.Record) error {
	what := string(r.Op) + " " + r.ID
	switch actor := Actor(j.Token); {
	case r.Actor != actor:
		return approval.Refused(fmt.Sprintf("%s is by %s, but the token is of %s", what, r.Actor, actor))
	case r.Token != j.Token.ID:
		return approval.Refused(fmt.Sprintf("%s names the token %.100q, but is pushed with %s", what, r.Token, j.Token.ID))
	case r.Time.Sub(j.Now).Abs() > maxSkew:
		return approval.Refused(fmt.Sprintf("%s has the time %s, which is not within %s of the server's", what,
			r.Time.UTC().Format("2006-01-02T15:04:05Z"), maxSkew))
	case r.Op == approval.Request && r.Subject.Action != approval.Delete && r.Subject.Commit == "":
		return approval.Refused(what + " names no commit: request the approval with this version of artifactfs")
	case j.Token.Session != "" && r.Op != approval.Request && r.Op != approval.Withdraw:
		return approval.Refused(fmt.Sprintf("%s is refused: a token of a session can request and withdraw, but not %s", what,
			r.Op))
	case j.Token.Actor == "" && !controls(j.Token) && r.Op != approval.Request && r.Op != approval.Withdraw:
		// A mount gets another token each hour, and would count as another user with each of them.
		return approval.Refused(fmt.Sprintf("%s is refused: a token without an actor can request and withdraw, but not %s",
			what, r.Op))
	}
	return nil
}

// checkRemoval decides about the removal of a session's approvals or annotations, which the parameter what names, when
// all other updates have their results. It is possible together with the session, in the same push. If the repository
// does not have the session, a token for the REST API is necessary.
func (j *judge) checkRemoval(name, what string, results []error) error {
	if session.ValidName(name) != nil {
		return nil
	}
	meta := session.MetaRef(name)
	id := j.assume(meta)
	removed := slices.ContainsFunc(j.Updates,
		func(u records.RefUpdate) bool { return u.Name == meta && u.Removes() && u.Old == id })
	for i, u := range j.Updates {
		removed = removed && (u.Name != meta || results[i] == nil)
	}
	if removed || id == "" && controls(j.Token) {
		return nil
	}
	return approval.Refused("the " + what + " of a session can be removed only together with the session")
}

// checkSession decides about the deletion of a session.
func (j *judge) checkSession(ctx context.Context, u records.RefUpdate) (refused, err error) {
	if refused, err := j.held(strings.TrimPrefix(u.Name, metaPrefix)); refused != nil || err != nil {
		return refused, err
	}
	p, err := j.current()
	if err != nil || p.refused != nil {
		return p.refused, err
	}
	name := strings.TrimPrefix(u.Name, metaPrefix)
	if !p.ProtectsSession(name) {
		return nil, nil
	}
	if j.refs.ID(u.Name) != u.Old {
		return errStale, nil
	}
	newest, err := j.newest(ctx, name)
	if err != nil {
		return nil, err
	}
	for _, r := range j.refs.below(session.LanePrefix(name)) {
		j.assume(r.Name) // a checkpoint that is pushed now is not deleted with the session
	}
	own := []records.Ref{}
	if id := j.refs.ID(approval.Ref(name)); id != "" {
		own = append(own, records.Ref{Name: approval.Ref(name), ID: id})
	}
	logs, damaged, err := j.logs(ctx, own, "")
	if err != nil {
		return nil, err
	}
	return j.decide(ctx, p, u, approval.Change{Session: name, Newest: newest}, logs, damaged)
}

// newest returns the newest checkpoint of a session in the repository, the zero Checkpoint if there is none.
func (j *judge) newest(ctx context.Context, name string) (newest session.Checkpoint, err error) {
	for _, r := range j.refs.below(session.LanePrefix(name)) {
		id, text, err := j.commit(r.ID)
		if newest, err = j.newer(newest, id, text, err); err != nil {
			return newest, fmt.Errorf("read %s: %w", r.Name, err)
		}
	}
	if newest.ID != "" || j.refs.ID(thin.Ref(name)) == "" || j.Unpacked == nil {
		return newest, nil
	}
	j.assume(thin.Ref(name))
	return j.newestUnpacked(ctx, name)
}

// newer returns the newer one of the checkpoint newest and the checkpoint in the commit id, whose contents are text.
// The parameter failed is the error of reading the commit. A commit that is invalid is ignored; other errors are
// returned.
func (j *judge) newer(newest session.Checkpoint, id object.ID, text []byte, failed error) (session.Checkpoint, error) {
	if failed != nil {
		if invalid(failed) {
			failed = nil
		}
		return newest, failed
	}
	// Only a token of the session can have pushed a commit that is not a checkpoint.
	if p, err := session.ParseCheckpoint(j.format, id, text); err == nil && p.ID > newest.ID {
		newest = p
	}
	return newest, nil
}

// newestUnpacked is newest for a thin session, whose checkpoints are in its container. The result is the zero
// Checkpoint if the container cannot be unpacked.
func (j *judge) newestUnpacked(ctx context.Context, name string) (newest session.Checkpoint, err error) {
	dir, refs, err := j.Unpacked(ctx)
	if err != nil {
		return newest, err
	}
	from, err := odb.Open(filepath.Join(dir, "objects"), j.format)
	if err != nil {
		return newest, fmt.Errorf("read thin session %s: %w", name, err)
	}
	defer from.Close()
	for ref, text := range refs {
		if !strings.HasPrefix(ref, session.LanePrefix(name)) {
			continue
		}
		id, err := object.ParseIDOf(j.format, text)
		var commit []byte
		if err == nil {
			_, commit, err = from.Get(id, object.MaxCommitSize)
		}
		if newest, err = j.newer(newest, id, commit, err); err != nil {
			return newest, fmt.Errorf("read %s: %w", ref, err)
		}
	}
	return newest, nil
}

// logs reads the approvals of refs, leaving out those that do not contain a text. damaged says which approvals cannot
// be read.
func (j *judge) logs(ctx context.Context, refs []records.Ref, with string) (logs []approval.Log, damaged, err error) {
	for _, r := range refs {
		if err := ctx.Err(); err != nil {
			return nil, nil, err
		}
		name := strings.TrimPrefix(r.Name, approval.Prefix)
		text, err := j.file(reffile.File{Ref: r.Name, Name: approval.LogFile}, r.ID)
		if err == nil {
			if !bytes.Contains(text, []byte(with)) {
				continue
			}
			var log approval.Log
			if log, err = approval.ParseLog(name, text); err == nil {
				logs = append(logs, log)
				continue
			}
		}
		if !invalid(err) {
			return nil, nil, err
		}
		if damaged == nil {
			damaged = fmt.Errorf("the approvals of session %s cannot be read: %w", name, err)
		}
	}
	return logs, damaged, nil
}
