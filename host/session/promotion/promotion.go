// Package promotion pushes the commits of a session to a branch of a repository, the target, and returns summaries of
// the changes of a session.
//
// A promotion works in attempts. An attempt reads the branch, compares it with the commits of the session, creates a
// commit if the method needs one, and pushes by compare-and-swap: the old value in the push is the value that was read.
// If the branch has moved meanwhile, there is one more attempt.
//
// git runs in a scratch repository. It has the objects that are fetched from the target and those that are created, and
// uses the objects of the session as alternates. Everything that is sent is reachable from a commit of the user, so
// refs and checkpoints of the session never leave it.
package promotion

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/git/refname"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/host/remotes"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/packs"
	"github.com/artifactfs/artifactfs/session/review"
	"github.com/artifactfs/artifactfs/session/thin"
)

const (
	heads       = "refs/heads/"
	maxPromoted = 1 << 30 // maximum size in bytes of an object that is fetched from the target
	maxNamed    = 20      // maximum number of paths that an error names
	maxHaves    = 256     // maximum number of commits of the session that a fetch from the target names
)

// Options are the options of Promote.
type Options struct {
	// Dir is the directory in which the scratch repository is created.
	Dir string
	// Open opens the target that a mount request names as its session remote. The result is nil if the request names
	// none. Promote closes the remote.
	Open func(r control.MountRequest) (*thin.Remote, error)
}

// promotion is the state of one request to promote a session. Only one goroutine uses it.
type promotion struct {
	r       control.SessionPromoteRequest
	o       *Session
	point   session.Checkpoint // checkpoint whose HEAD is promoted
	work    *history           // commits of the session
	target  *transport.Remote
	scratch *session.Repo
	remove  func() error // removes the scratch repository
	// committer has environment variables with the name and the address of the user as the target knows that user; if
	// empty, those of the caller apply.
	committer []string
	reply     *control.SessionPromoteReply
	// whole is set after the target has refused a push because it lacks objects. The next attempt pushes also objects
	// that the mounted remote was assumed to have.
	whole bool
}

// Promote pushes the HEAD of the checkpoint point to a branch, as the request r states.
func Promote(ctx context.Context, o *Session, point session.Checkpoint, r control.SessionPromoteRequest,
	opts Options) (_ control.SessionPromoteReply, err error) {
	reply := control.SessionPromoteReply{Session: o.Name, Checkpoint: string(point.ID), Commits: []control.SummaryCommit{},
		DryRun: r.DryRun, Method: r.Method}
	if reply.Method == "" {
		reply.Method = control.PromoteFF
	}
	p := &promotion{r: r, o: o, point: point, reply: &reply}
	defer func() { err = errors.Join(err, p.close()) }()
	return reply, p.run(ctx, opts)
}

// close closes the connection to the target and removes the scratch repository.
func (p *promotion) close() error {
	var err error
	if p.target != nil {
		err = p.target.Close()
	}
	if p.scratch != nil {
		err = errors.Join(err, p.scratch.Close(), p.remove())
	}
	return err
}

// refused returns an error for the user, which names the target and states that the branch cannot be changed.
func (p *promotion) refused(kind control.ErrorCode, cause, hint string) error {
	return &control.Error{Code: control.ExitRemote, Kind: kind, Verb: "promote to",
		Object: p.reply.Branch + " of " + p.reply.Target,
		Cause:  cause, Hint: hint}
}

// failed converts err, the error of an exchange with the target, into the form that is shown to the user.
func (p *promotion) failed(err error) error {
	return fault.Explain("promote to", p.reply.Branch+" of "+p.reply.Target, err)
}

// run promotes the commits and sets the fields of the reply.
func (p *promotion) run(ctx context.Context, opts Options) (err error) {
	if p.point.Head.IsZero() {
		return &control.Error{Code: control.ExitFailed, Kind: control.CodeNotFound, Verb: "promote",
			Object: "session " + p.o.Name,
			Cause:  "HEAD has no commit", Hint: "run git commit first"}
	}
	p.reply.Head = p.point.Head.String()
	if p.r.ID == "" {
		if err := p.committed(ctx); err != nil {
			return err
		}
	}
	if p.work, err = p.o.history(ctx, p.point.Head); err != nil {
		return err
	}
	if err := p.open(opts); err != nil {
		return err
	}
	dir, remove, err := disk.TempDir(opts.Dir, "promote")
	if err != nil {
		return err
	}
	if p.scratch, err = session.OpenRepo(dir, session.RepoOptions{Format: p.o.Repo.Format()}); err != nil {
		return errors.Join(err, remove())
	}
	p.remove = remove
	for {
		if again, err := p.attempt(ctx); err != nil || !again {
			return err
		}
	}
}

// committed returns an error if the checkpoint has changes that its HEAD commit does not have.
func (p *promotion) committed(ctx context.Context) error {
	changed, err := p.o.uncommitted(ctx, p.point)
	if err != nil || len(changed) == 0 {
		return err
	}
	return &control.Error{Code: control.ExitFailed, Kind: control.CodeConflict, Verb: "promote",
		Object: "session " + p.o.Name,
		Cause:  "changes are not committed: " + review.Some(changed, maxNamed),
		Hint:   "run git commit, or name the checkpoint HEAD to leave these changes out: artifactfs session promote HEAD"}
}

// open opens the target and determines the target branch.
func (p *promotion) open(opts Options) error {
	r := p.o.Request
	to := p.r.To
	p.reply.Mounted = to == "" || to == control.RemoteOrigin ||
		statedir.WithoutSecrets(to) == statedir.WithoutSecrets(r.Remote)
	named := to != "" && to != control.RemoteOrigin // only such a URL can have credentials
	if !named {
		to = r.Remote
	}
	// The token of the session remote is for the session remote only, and may be limited to the refs of the session. So it
	// is used only if the mounted remote is the session remote, and the mount has no credentials for the mounted remote.
	at, _ := remotes.SessionURL(r)
	same := at != "" && statedir.WithoutSecrets(at) == statedir.WithoutSecrets(to)
	own := r.Token != "" || r.TokenFile != "" || statedir.WithoutSecrets(r.Remote) != r.Remote
	if !same || own && !named {
		r.SessionToken, r.SessionTokenFile = "", ""
	}
	r.Session, r.SessionOptions = "", control.SessionOptions{Remote: to}
	switch {
	case !named && same && !own:
		// both are the same repository, but only the URL of the session remote may contain credentials
		r.SessionOptions.Remote = at
	case !named:
		r.SessionOptions.Remote = control.RemoteOrigin
	}
	target, err := opts.Open(r)
	if err != nil {
		return &control.Error{Code: control.ExitUsage, Verb: "promote to", Object: statedir.WithoutSecrets(to),
			Cause: err.Error()}
	}
	if target == nil {
		return &control.Error{Code: control.ExitUsage, Verb: "promote to", Object: statedir.WithoutSecrets(to),
			Cause: "target is not the URL or the path of a git repository"}
	}
	p.target = target.Remote
	p.reply.Target, p.reply.Branch = p.target.URL(), p.r.Branch
	if p.reply.Branch == "" {
		name, ok := strings.CutPrefix(p.o.Record.Ref, heads)
		if !ok {
			return &control.Error{Code: control.ExitUsage, Verb: "promote", Object: "session " + p.o.Name,
				Cause: "session was mounted without a branch", Hint: "add --to :BRANCH to name the branch"}
		}
		p.reply.Branch = name
	}
	if p.r.PullRequest {
		p.reply.Base, p.reply.Branch = p.reply.Branch, p.r.PullBranch
		switch {
		case p.reply.Branch != "":
		case same: // the session's own branches are below afs/SESSION there
			p.reply.Branch = "afs-" + p.o.Name
		default:
			p.reply.Branch = "afs/" + p.o.Name
		}
	}
	for _, name := range []string{p.reply.Branch, p.reply.Base} {
		if name != "" && !refname.Valid(heads+name) {
			return &control.Error{Code: control.ExitUsage, Verb: "promote to", Object: name, Cause: "invalid name of a branch"}
		}
	}
	return nil
}

// attempt reads the target branch and pushes to it once. It returns true if another attempt may succeed.
func (p *promotion) attempt(ctx context.Context) (again bool, err error) {
	branch := heads + p.reply.Branch
	names := []string{branch}
	if p.reply.Base != "" {
		names = append(names, heads+p.reply.Base)
	}
	for i := len(heads); i < len(branch); i++ {
		if branch[i] == '/' {
			names = append(names, branch[:i]) // a branch of this name excludes the branch
		}
	}
	push, err := p.target.OpenPush(ctx, names)
	if err != nil {
		return false, p.failed(err)
	}
	defer push.Close()
	if push.Format != p.o.Repo.Format() {
		return false,
			p.refused(control.CodeUnsupported, fmt.Sprintf("repository has object ids of the format %s, the session %s",
				push.Format, p.o.Repo.Format()), "")
	}
	var old, start object.ID
	for _, ref := range push.Refs {
		if strings.HasPrefix(ref.Name, branch+"/") || strings.HasPrefix(branch, ref.Name+"/") {
			return false, p.refused(control.CodeConflict, "branch cannot exist beside "+strings.TrimPrefix(ref.Name, heads),
				"choose another branch")
		}
		if ref.Name == branch {
			old = ref.ID
		}
		if ref.Name == heads+p.reply.Base {
			start = ref.ID
		}
	}
	next, err := p.plan(ctx, old, start)
	if err != nil {
		return false, err
	}
	if p.reply.Old = ""; !old.IsZero() {
		p.reply.Old = old.String()
	}
	if next.tip.IsZero() { // the branch contains the changes already
		p.reply.Method, p.reply.New, p.reply.Tree = control.PromoteNone, p.reply.Old, ""
		return false, nil
	}
	if p.reply.Tree = next.tree.String(); next.tip == p.work.head || !p.r.DryRun {
		p.reply.New = next.tip.String()
	}
	ids, err := p.outgoing(ctx, next)
	if err != nil {
		return false, err
	}
	req := transport.PushRequest{Updates: []transport.RefUpdate{{Name: branch, Old: old, New: next.tip}}}
	if len(ids) > 0 {
		req.Pack = packs.Git(p.scratch.Dir(), ids, gitcmd.Alternates(p.o.objects()...))
	}
	if p.r.DryRun {
		if req.Pack != nil { // an object that cannot be sent is found by creating the pack
			err = req.Pack(ctx, io.Discard)
		}
		return false, err
	}
	results, err := push.Send(ctx, req)
	if err != nil {
		return false, p.failed(err)
	}
	return p.result(results[0])
}

// result evaluates the answer of the target to a push. again is true if another attempt may succeed.
func (p *promotion) result(answer error) (again bool, err error) {
	var no *transport.Rejected
	if !errors.As(answer, &no) {
		return false, answer
	}
	switch {
	case no.Kind == transport.RejectMoved && !p.reply.Retried:
		p.reply.Retried = true
		return true, nil
	case no.Kind == transport.RejectMoved:
		return false, p.refused(control.CodeConflict, "branch moved again during the second attempt: "+no.Text,
			"run the command again")
	case (no.Kind == transport.RejectMissing || no.Kind == transport.RejectUnpack) && !p.whole:
		p.whole = true
		return true, nil
	}
	return false, p.refused(control.CodeRefused, no.Text, "")
}

// fetch fetches objects from the target into the scratch repository.
func (p *promotion) fetch(ctx context.Context, req transport.FetchRequest) error {
	caps, err := p.target.Capabilities(ctx)
	if err != nil {
		return err
	}
	if !caps.Filter {
		req.Filter = ""
	}
	if !caps.Shallow {
		req.Depth = 0
	}
	packs, err := p.scratch.Packs()
	if err != nil {
		return err
	}
	answer, err := p.target.Fetch(ctx, req)
	if err != nil {
		return err
	}
	defer answer.Pack.Close()
	_, err = packs.Ingest(ctx, answer.Pack, odb.IngestOptions{MaxObjectSize: maxPromoted, Promisor: true, Temporary: true},
		nil)
	return err
}

// provide fetches the contents ids: if first is set, from the target, and then from the mounted remote and the session
// remote those that the target lacks.
func (p *promotion) provide(ctx context.Context, ids []object.ID, first bool) error {
	p.reply.Fetched += int64(len(ids))
	var rest []object.ID
	for first && len(ids) > 0 {
		err := p.fetch(ctx, transport.FetchRequest{Wants: ids, Filter: "blob:none"})
		var lacks transport.NotOurRef
		if err == nil {
			ids = nil
			break
		}
		if !errors.As(err, &lacks) || !slices.Contains(ids, lacks.ID) {
			return p.failed(err)
		}
		rest = append(rest, lacks.ID)
		ids = slices.DeleteFunc(slices.Clone(ids), func(id object.ID) bool { return id == lacks.ID })
	}
	if rest = append(rest, ids...); len(rest) == 0 {
		return nil
	}
	err := p.o.Provide(ctx, rest)
	if err == nil || !p.o.Far || !p.reply.Mounted {
		return err
	}
	// Neither the session remote nor the mounted remote has all of these contents. The target has the others.
	for _, id := range rest {
		if err := p.o.Provide(ctx, []object.ID{id}); err != nil && ctx.Err() != nil {
			return err
		}
	}
	return nil
}
