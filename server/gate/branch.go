package gate

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/git/read"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/approval"
	"github.com/artifactfs/artifactfs/session/reffile"
	"github.com/artifactfs/artifactfs/session/review"
)

// maxPaths is the maximum size in bytes of the list of the paths that a push changes.
const maxPaths = 64 << 20

// policy is the policy of the repository before the push.
type policy struct {
	approval.Policy
	refused error // reason why the policy cannot be applied, so that everything that it may protect is refused
}

// current returns the policy of the repository.
func (j *judge) current() (policy, error) {
	if j.policy != nil {
		return *j.policy, nil
	}
	p := policy{}
	if id := j.assume(approval.PolicyRef); id != "" {
		read, err := review.ReadPolicy(j.file(review.PolicyFile, id))
		if err != nil {
			return p, err
		}
		if p.Policy = read.Policy; read.Invalid != nil {
			p.refused =
				approval.Refused(fmt.Sprintf("%s is not valid, and nothing that it may protect can be changed until it is repaired: %v",
					approval.PolicyRef, read.Invalid))
		}
	}
	j.policy = &p
	return p, nil
}

// invalid reports whether an error means that the file of a ref does not have the expected contents.
func invalid(err error) bool {
	for _, what := range []error{approval.ErrPolicy, approval.ErrLog, reffile.ErrNotFile, odb.ErrTooLarge} {
		if errors.Is(err, what) {
			return true
		}
	}
	return false
}

// file reads the file of a ref at a commit.
func (j *judge) file(f reffile.File, commit string) ([]byte, error) {
	id, err := j.open(commit)
	if err != nil {
		return nil, err
	}
	return f.Content(j.objects, id)
}

// commit returns the contents of a commit.
func (j *judge) commit(id string) (object.ID, []byte, error) {
	parsed, err := j.open(id)
	if err != nil {
		return parsed, nil, err
	}
	kind, text, err := j.objects.Get(parsed, object.MaxCommitSize)
	if err == nil && kind != object.Commit {
		err = fmt.Errorf("%w: object %s is a %s", reffile.ErrNotFile, id, kind)
	}
	return parsed, text, err
}

// open parses an id, and opens the objects if this is the first one.
func (j *judge) open(id string) (object.ID, error) {
	parsed, err := object.ParseIDOf(j.format, id)
	if err == nil && j.objects == nil {
		j.objects, err = odb.Open(j.Dir+"/objects", j.format)
	}
	return parsed, err
}

// checkBranch decides about a branch.
func (j *judge) checkBranch(ctx context.Context, u records.RefUpdate) (refused, err error) {
	p, err := j.current()
	if err != nil || p.refused != nil {
		return p.refused, err
	}
	if !p.Protects(u.Name) || u.Old == u.New {
		return nil, nil
	}
	name := strings.TrimPrefix(u.Name, headsPrefix)
	switch old := j.refs.ID(u.Name); {
	case old == u.New && !u.Removes(): // another push has made the same update, so that this one changes nothing
		j.assume(u.Name)
		return nil, nil
	case old != u.Old && !(old == "" && u.Creates()):
		return errStale, nil
	}
	change := approval.Change{Branch: u.Name}
	switch {
	case u.Removes():
		return approval.Refused(name + " is protected: it cannot be removed while the policy protects it"), nil
	case !u.Creates():
		change.Base = u.Old
		forced, err := j.Forced(ctx, u)
		if err != nil {
			return nil, err
		}
		if forced {
			return approval.Refused(name + " is protected: it can only be fast-forwarded"), nil
		}
	}
	_, text, err := j.commit(u.New)
	if err != nil && !invalid(err) {
		return nil, err
	}
	var info object.CommitInfo
	if err == nil {
		info, err = object.ParseCommit(j.format, text)
	}
	if err != nil {
		return approval.Refused(fmt.Sprintf("%s is protected, and commit %s cannot be read: %v", name, u.New, err)), nil
	}
	change.Tree = info.Tree.String()
	if p.NeedsPaths(u.Name) {
		if change.Paths, refused, err = j.paths(ctx, name, u); refused != nil || err != nil {
			return refused, err
		}
	}
	logs, damaged, err := j.logs(ctx, j.refs.below(approval.Prefix), change.Tree)
	if err != nil {
		return nil, err
	}
	var failed error
	change.Covers = func(request approval.Record) string {
		why, err := j.covers(ctx, u, request)
		failed = errors.Join(failed, err)
		return why
	}
	if refused, err = j.decide(ctx, p, u, change, logs, damaged); failed != nil {
		return nil, failed
	}
	return refused, err
}

// decide applies the policy to a change, and notes which approval has allowed it. damaged is the error of approvals
// that cannot be read; they do not count.
func (j *judge) decide(ctx context.Context, p policy, u records.RefUpdate, c approval.Change, logs []approval.Log,
	damaged error) (
	refused, err error) {
	newest := func(name string) (session.Checkpoint, error) { return j.newest(ctx, name) }
	request, refused := p.Check(c, logs, newest, j.Now)
	var reason approval.Refused
	switch {
	case refused != nil && !errors.As(refused, &reason):
		return nil, refused
	case refused != nil && damaged != nil:
		return approval.Refused(fmt.Sprintf("%v; %v", refused, damaged)), nil
	case refused == nil && request.ID != "":
		j.assume(approval.Ref(request.Session))
		j.used = append(j.used, Use{u.Name, request.ID, request.Session})
	}
	return refused, nil
}

// paths returns the paths whose files differ between the old and the new commit of a branch, or all if the branch is
// created.
func (j *judge) paths(ctx context.Context, name string, u records.RefUpdate) (paths []string, refused, err error) {
	args := []string{"diff-tree", "-r", "-z", "--name-only", "--no-renames", "--ignore-submodules=none", u.Old, u.New}
	if u.Creates() {
		args = []string{"ls-tree", "-r", "-z", "--name-only", u.New}
	}
	out, cut, err := read.Output(j.Git.In(j.Dir).Command(ctx, args...), maxPaths)
	switch {
	case cut:
		return nil, approval.Refused(name + " is protected, and the push changes too many files to find the rules for them"),
			nil
	case gitcmd.Exited(err, 128) && ctx.Err() == nil:
		return nil,
			approval.Refused(name + " is protected, and the repository lacks objects to find the files that the push changes"),
			nil
	case err != nil:
		return nil, nil, err
	}
	return strings.FieldsFunc(string(out), func(r rune) bool { return r == 0 }), nil, nil
}
