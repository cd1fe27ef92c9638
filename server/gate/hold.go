package gate

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/control/profile"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/approval"
	"github.com/artifactfs/artifactfs/session/reffile"
)

// A session on hold is neither deleted nor shortened: its refs are not removed, and those of heldParts are only
// fast-forwarded. Only tokens for the REST API release the hold.

// heldParts are the kinds of refs, refs/afs/KIND/SESSION/..., that a hold protects: checkpoints, containers, previous
// commits of branches, transcript, facts and annotations.
var heldParts = []string{"j", "thin", "kept", "transcript", "facts", "ann"}

// heldPart returns the session to which a ref belongs that a hold protects; "" for other refs.
func heldPart(name string) string {
	rest, ok := strings.CutPrefix(name, session.Prefix)
	if !ok {
		return ""
	}
	part, rest, _ := strings.Cut(rest, "/")
	of, _, _ := strings.Cut(rest, "/")
	if !slices.Contains(heldParts, part) {
		return ""
	}
	return of
}

// profileAt returns the profile in a commit of the metadata of a session. Other fields are not looked at, so that
// metadata of a later version of the program can be read. The profile is empty if the object is no such commit.
func (j *judge) profileAt(name, commit string) (p profile.Profile, err error) {
	if commit == "" {
		return p, nil
	}
	text, err := j.file(reffile.File{Ref: session.MetaRef(name), Name: session.MetaFile}, commit)
	if err == nil {
		_ = json.Unmarshal(text, &p)
	}
	if invalid(err) {
		return p, nil
	}
	return p, err
}

// held returns a refusal if the session is on hold in the repository.
func (j *judge) held(name string) (refused, err error) {
	p, err := j.profileAt(name, j.refs.ID(session.MetaRef(name)))
	if err != nil || !p.Held() {
		return nil, err
	}
	return approval.Refused(p.OnHold(name).Error()), nil
}

// checkShortening decides about a change of a ref that a hold protects.
func (j *judge) checkShortening(ctx context.Context, u records.RefUpdate) (refused, err error) {
	name := heldPart(u.Name)
	if u.Creates() {
		return nil, nil
	}
	if u.Removes() {
		j.assume(session.MetaRef(name)) // a hold that is placed now applies
	}
	if refused, err = j.held(name); refused == nil || err != nil || u.Removes() {
		return refused, err
	}
	forced, err := j.Forced(ctx, u)
	if err != nil || !forced {
		return nil, err
	}
	return refused, nil
}

// checkMetadata decides about new metadata of a session: if the session is on hold, it must stay on hold, unless the
// token may release it.
func (j *judge) checkMetadata(u records.RefUpdate) (refused, err error) {
	name := strings.TrimPrefix(u.Name, metaPrefix)
	if u.Creates() || controls(j.Token) {
		return nil, nil
	}
	if refused, err = j.held(name); refused == nil || err != nil {
		return nil, err
	}
	after, err := j.profileAt(name, u.New)
	if err != nil || after.Held() {
		return nil, err
	}
	return approval.Refused(fmt.Sprintf("%v; only an owner or admin token can release the hold", refused)), nil
}
