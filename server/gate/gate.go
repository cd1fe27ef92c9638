// Package gate decides which updates of a push the policy of the repository and the approvals in it allow. Package
// approval has the rules; this package finds what they are applied to, and guards the refs that store policy and
// approvals:
//
//   - A branch that the policy protects moves forward only, to a tree that was approved for its present commit. It can
//     be created with an approval, too, but it cannot be removed or rewritten.
//   - The policy changes only with tokens for the REST API, and only to a valid one.
//   - The approvals of a session only grow, by records that name the user and the token that push them, and the present
//     time.
//   - The annotations of a session only grow, too. Owners and administrators can also remove annotations.
//   - A session that the policy protects is deleted, that is, its ref refs/afs/meta/SESSION is removed, only with an
//     approval.
//   - A session on hold is neither deleted nor shortened. Only tokens for the REST API release a hold.
//   - A cache entry names the user who pushes it, and the session to which the token is bound.
//   - Locks of sessions name the user who pushes them, and locks of other sessions disappear only with a record
//     (locks.Verify).
//
// These rules are for all tokens, also for those of owners and administrators.
//
// A push is judged by the policy and the approvals that the repository has before the push, also if the push changes
// them. Verdict.Assumed contains their refs: the transaction that makes the push visible must find them unchanged
// (records.Push). So a policy that was changed, or an approval that was withdrawn, in the meantime applies.
package gate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/git/packedrefs"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/approval"
	"github.com/artifactfs/artifactfs/session/locks"
	"github.com/artifactfs/artifactfs/session/thin"
)

const (
	headsPrefix = "refs/heads/"

	// maxSkew is the maximum difference between the time of a new record and the server's time.
	maxSkew = 5 * time.Minute
	// maxTime is the maximum time for the decision about one push.
	maxTime = time.Minute
)

// errStale is the result of an update whose old value is not that of the ref. The text is git's.
var errStale = errors.New("stale ref")

// Push is a push that git has received and checked.
type Push struct {
	Git gitcmd.Confined
	// git directory with the refs of the repository before the push, in packed-refs, and with all objects of the push
	Dir     string
	Format  string // object format of the repository
	Token   records.Token
	Updates []records.RefUpdate
	// Forced reports whether an update that neither creates nor removes a ref is not a fast-forward.
	Forced func(ctx context.Context, u records.RefUpdate) (bool, error)
	// Unpacked returns the git directory in which the containers of thin sessions are unpacked, and the refs that only
	// they have. nil: the checkpoints of thin sessions are not known.
	Unpacked func(ctx context.Context) (dir string, refs map[string]string, err error)
	Now      time.Time
}

// Verdict is the decision about a push.
type Verdict struct {
	// refs on which the decision depends, with their values; the ID is "" for a ref that must not exist
	Assumed []records.Ref
	Used    []Use // updates that an approval has allowed
}

// Use is the use of an approval.
type Use struct{ Ref, Request, Session string }

// String returns the line for the audit log.
func (u Use) String() string {
	return fmt.Sprintf("%s: approved by request %s of session %s", u.Ref, u.Request, u.Session)
}

// Actor returns the name of the user of a token in records of approvals.
func Actor(t records.Token) string {
	if t.Actor != "" {
		return t.Actor
	}
	return "token:" + t.ID
}

// Check sets an error of type approval.Refused, or a text of git, as the result of each update that is not allowed. It
// looks only at updates without a result. If Check itself returns an error, the push must be refused.
func Check(ctx context.Context, p Push, results []error) (Verdict, error) {
	if !slices.ContainsFunc(p.Updates, func(u records.RefUpdate) bool { return kindOf(u) != other }) {
		return Verdict{}, nil
	}
	limited, cancel := context.WithTimeout(ctx, maxTime)
	defer cancel()
	j, err := newJudge(p)
	if err != nil {
		return Verdict{}, fmt.Errorf("check policy: %w", err)
	}
	defer j.close()
	if err = j.judge(limited, results); err == nil {
		return j.verdict(), nil
	}
	if ctx.Err() == nil && limited.Err() != nil {
		for i := range results {
			if results[i] == nil {
				results[i] = approval.Refused(fmt.Sprintf("checking the policy of the repository takes longer than %s", maxTime))
			}
		}
		return Verdict{}, nil
	}
	return Verdict{}, fmt.Errorf("check policy: %w", err)
}

// judge is the decision about one push.
type judge struct {
	Push
	format  object.Format
	refs    refFile
	objects *odb.Store // nil until the first object is read
	policy  *policy    // nil until it is needed
	assumed map[string]string
	used    []Use
}

func newJudge(p Push) (*judge, error) {
	j := &judge{Push: p, assumed: map[string]string{}}
	var err error
	if j.format, err = object.ParseFormat(p.Format); err != nil {
		return nil, err
	}
	j.refs.File, err = packedrefs.Map(p.Dir)
	return j, err
}

func (j *judge) close() {
	j.refs.Unmap()
	if j.objects != nil {
		j.objects.Close()
	}
}

func (j *judge) verdict() Verdict {
	v := Verdict{Used: j.used}
	for name, id := range j.assumed {
		v.Assumed = append(v.Assumed, records.Ref{Name: name, ID: id})
	}
	slices.SortFunc(v.Assumed, func(a, b records.Ref) int { return strings.Compare(a.Name, b.Name) })
	return v
}

// assume notes that the decision depends on the present value of a ref, and returns the value.
func (j *judge) assume(name string) string {
	id := j.refs.ID(name)
	j.assumed[name] = id
	return id
}

// kind is the kind of an update.
type kind int

const (
	other kind = iota // not checked
	branch
	policyFile
	approvals
	annotation
	trashedAnnotation // a copy of annotations in the trash
	deletion          // of a session
	metadata          // of a session
	shortening        // of a session, if it is not a fast-forward
	locking           // change of the locks of sessions
	entry             // new value of a cache entry
)

func kindOf(u records.RefUpdate) kind {
	switch name := u.Name; {
	case strings.HasPrefix(name, headsPrefix):
		return branch
	case name == approval.PolicyRef || strings.HasPrefix(name, approval.PolicyRef+"/"):
		return policyFile
	case name+"/" == approval.Prefix || strings.HasPrefix(name, approval.Prefix):
		return approvals
	case name+"/" == annotationsPrefix || strings.HasPrefix(name, annotationsPrefix):
		return annotation
	case strings.HasPrefix(name, thin.TrashPrefix):
		if _, ok := trashed(name); ok {
			return trashedAnnotation
		}
	case name == locks.Ref || strings.HasPrefix(name, locks.Ref+"/"):
		return locking
	case strings.HasPrefix(name, session.EntryPrefix) && !u.Removes():
		return entry
	case strings.HasPrefix(name, metaPrefix) && u.Removes():
		return deletion
	case strings.HasPrefix(name, metaPrefix):
		return metadata
	case heldPart(name) != "":
		return shortening
	}
	return other
}

// judge sets the results of updates that are refused.
func (j *judge) judge(ctx context.Context, results []error) error {
	for i, u := range j.Updates {
		if results[i] != nil {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		refused, err := j.check(ctx, u)
		if err != nil {
			return err
		}
		if results[i] = refused; refused != nil && kindOf(u) == deletion {
			j.keep(strings.TrimPrefix(u.Name, metaPrefix), refused, results)
		}
	}
	for i, u := range j.Updates {
		for prefix, what := range map[string]string{approval.Prefix: "approvals", annotationsPrefix: "annotations"} {
			if name, ok := strings.CutPrefix(u.Name, prefix); ok && u.Removes() && results[i] == nil {
				results[i] = j.checkRemoval(name, what, results)
			}
		}
	}
	return nil
}

// check decides whether one update is allowed. It returns a refusal, or an error that prevents a decision. Whether
// approvals and annotations may be removed depends on the results of other updates, and is decided by judge.
func (j *judge) check(ctx context.Context, u records.RefUpdate) (refused, err error) {
	switch kindOf(u) {
	case branch:
		return j.checkBranch(ctx, u)
	case policyFile:
		return j.checkPolicy(u)
	case approvals:
		if !u.Removes() {
			return j.checkApprovals(ctx, u)
		}
	case annotation:
		if refused, err := j.checkShortening(ctx, u); refused != nil || err != nil || u.Removes() {
			return refused, err
		}
		return j.checkAnnotations(u)
	case trashedAnnotation:
		return j.checkTrash(u), nil
	case deletion:
		return j.checkSession(ctx, u)
	case metadata:
		return j.checkMetadata(u)
	case shortening:
		return j.checkShortening(ctx, u)
	case locking:
		return j.checkLocks(u)
	case entry:
		return j.checkEntry(u)
	}
	return nil, nil
}

// keep refuses the removal of all refs of a session that must not be deleted. Otherwise a push that is not atomic would
// remove them.
func (j *judge) keep(name string, reason error, results []error) {
	for i, u := range j.Updates {
		kind, of := "", ""
		if rest, ok := strings.CutPrefix(u.Name, session.Prefix); ok {
			kind, rest, _ = strings.Cut(rest, "/")
			of, _, _ = strings.Cut(rest, "/")
		} else if rest, ok := strings.CutPrefix(u.Name, headsPrefix+"afs/"); ok {
			of, _, _ = strings.Cut(rest, "/")
		}
		if of == name && kind != "trash" && u.Removes() && results[i] == nil {
			results[i] = reason
		}
	}
}
