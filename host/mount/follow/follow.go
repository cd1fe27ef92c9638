// Package follow makes a mount follow its branch on the remote: the mount is switched to the commit of the branch
// whenever that changes.
package follow

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/git/gitdir"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/refname"
	"github.com/artifactfs/artifactfs/host/checkout"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/host/session/catalog"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/internal/disk"
)

// A mount that follows its branch regularly asks the remote for the commit of the branch, and then switches to that
// commit in the same way as the command "artifactfs switch". A writable mount switches only if the user has not changed
// anything: git status lists no changes, and HEAD is either the commit to which following has switched, or an ancestor
// of the branch on the remote.

// Follower makes one mount follow its branch on the remote. The exported fields are set before the mount is served, and
// do not change after that. The methods may be called from any goroutine. A nil Follower belongs to a mount that is not
// served, and its methods do nothing.
type Follower struct {
	Mount    *catalog.Mounted
	On       bool          // whether the mount request demands to follow the branch
	Interval time.Duration // time between two requests to the remote; 0 stands for DefaultInterval
	Log      *zap.Logger

	Ready func(ctx context.Context) (*gitdir.Dir, error) // returns the git directory, once git commands work in the mount
	// MoveTo switches the mount to a commit. If it returns an error, nothing has changed, or the next call completes the
	// switch.
	MoveTo func(ctx context.Context, git *gitdir.Dir, want checkout.SwitchIntent,
		progress func(control.Progress)) (control.SwitchReply, error)

	Snapshot func() *fetch.Snapshot       // returns the snapshot of the mounted commit
	Git      func() *gitdir.Dir           // returns the git directory; nil if git commands do not work in the mount yet
	Note     func(what string, err error) // records err as the result of the background work named what, for the status

	turn   chan struct{} // full while refresh runs, so that one call runs at a time; capacity 1
	moving chan struct{} // full while the mount is switched and the state of following is stored; capacity 1
}

// New returns a Follower with the exported fields of f.
func New(f Follower) *Follower {
	f.turn, f.moving = make(chan struct{}, 1), make(chan struct{}, 1)
	return &f
}

// DefaultInterval is the time between two automatic requests for the commit of the branch on the remote.
const DefaultInterval = 30 * time.Second

// followFile is the name of the file in the mount's home with the state of following as JSON (type followed). The file
// is written before each switch and after it.
const followFile = "follow.json"

var (
	// errBranchGone means that the followed branch was deleted on the remote.
	errBranchGone = errors.New("remote no longer has the branch")
)

// followed is the state of following that followFile stores.
type followed struct {
	// commit to which following, or the start of the mount, has set HEAD; "" if it is not known
	Put string `json:"put"`
	// commit to which following is switching the mount; "" if it is not switching
	Next    string    `json:"next,omitempty"`
	Tip     string    `json:"tip"`              // commit of the branch on the remote at the time Checked
	Checked time.Time `json:"checked,omitzero"` // time of the last request to the remote
	Moved   time.Time `json:"moved,omitzero"`   // time at which following last switched the mount; zero if it never did
	// reason why the mount was not switched; "" if it was switched, or was at Tip already
	Why string `json:"why,omitempty"`
}

// at returns the state of following at a time when HEAD is the commit head. If the process was killed after a switch,
// before the switch was stored, the result contains the switch.
func (f followed) at(head object.ID) followed {
	if f.Next != "" && f.Next == head.String() {
		f.Put, f.Moved = f.Next, f.Checked
	}
	f.Next = ""
	return f
}

// Run calls refresh in regular intervals until ctx ends. If the mount request demands following, Run is started after
// the first attempt to fetch the history.
func (w *Follower) Run(ctx context.Context) {
	interval := w.Interval
	if interval <= 0 {
		interval = DefaultInterval
	}
	for {
		_, err := w.refresh(ctx)
		if ctx.Err() != nil {
			return
		}
		w.Note("follow the remote", err)
		select {
		// The interval varies randomly by 10 %, so that mounts that were started together do not send their requests at the
		// same time.
		case <-time.After(interval - interval/10 + rand.N(interval/5+1)):
		case <-ctx.Done():
			return
		}
	}
}

// Refresh fetches the current commit of the mounted branch from the remote. If the mount follows the branch, Refresh
// switches it to that commit. The reply contains the old and the new commit, and the reason if the mount was not
// switched. Errors have a hint.
func (w *Follower) Refresh(ctx context.Context, progress func(control.Progress)) (control.RefreshReply, error) {
	start := time.Now()
	progress(control.Progress{Phase: "trees"})
	w.Mount.Store.Forgive()
	reply, err := w.refresh(ctx)
	if w.On && ctx.Err() == nil {
		w.Note("follow the remote", err)
	}
	if err != nil {
		return reply, fault.Explain("refresh", w.Mount.Dir, err)
	}
	reply.Took = time.Since(start).Milliseconds()
	return reply, nil
}

// refresh implements Refresh, without hints in its errors: it requests the commit of the mounted branch from the
// remote, fetches it if it is missing, updates the remote-tracking branch, and switches the mount if it follows the
// branch. It returns fault.ErrNoBranch if a tag or a commit is mounted, and errBranchGone if the branch was deleted on
// the remote.
func (w *Follower) refresh(ctx context.Context) (reply control.RefreshReply, err error) {
	ref := w.Snapshot().Ref
	branch, ok := strings.CutPrefix(ref, "refs/heads/")
	if !ok {
		return reply, fault.ErrNoBranch
	}
	git, err := w.Ready(ctx)
	if err != nil {
		return reply, err
	}
	select {
	case w.turn <- struct{}{}:
		defer func() { <-w.turn }()
	case <-ctx.Done():
		return reply, ctx.Err()
	}
	tip, err := w.Mount.Store.Tip(ctx, ref)
	if err == nil && tip.IsZero() {
		err = errBranchGone
	}
	if err != nil {
		return reply, fault.Remote(err)
	}
	from, err := git.Head(ctx)
	if err != nil {
		return reply, err
	}
	// The commit is fetched before the ref is set, so that git never finds a ref to a missing commit.
	if !w.Mount.Store.HasCommit(tip) {
		if err := w.Mount.Store.Advance(ctx, ref, tip, from.Commit); err != nil {
			return reply, fault.Remote(err)
		}
	}
	tracking := refname.Tracking(w.Mount.GitDir, branch)
	known, err := git.Commit(ctx, tracking)
	if err == nil && known.Commit != tip {
		err = errors.Join(git.SetShallow(w.Mount.Store.Boundary()), git.Track(ctx, ref, tip))
	}
	if err != nil {
		return reply, err
	}
	reply = control.RefreshReply{Dir: w.Mount.Dir, Branch: branch, Tracking: w.tracking(branch), Head: from.Branch,
		From: from.Commit.String(), To: tip.String(), Follows: w.On}
	if w.On {
		err = w.advance(ctx, git, branch, from, tip, known.Commit, &reply)
	}
	if !reply.Moved && reply.From != reply.To && err == nil {
		if v, countErr := git.Divergence(ctx, tracking); countErr == nil {
			reply.Ahead, reply.Behind, reply.Own = &v.Ahead, &v.Behind, v.Own
		}
	}
	return reply, err
}

// tracking returns the short name of the remote-tracking branch of the given branch.
func (w *Follower) tracking(branch string) string {
	return strings.TrimPrefix(refname.Tracking(w.Mount.GitDir, branch), "refs/remotes/")
}

// advance switches a mount that follows its branch to tip, the commit of the branch on the remote, unless changes of
// the user prevent the switch. It sets reply.Moved, reply.Paths and reply.Why, and stores the state of following. known
// is the previous commit of the remote-tracking branch.
func (w *Follower) advance(ctx context.Context, git *gitdir.Dir, branch string, from gitdir.Head, tip, known object.ID,
	reply *control.RefreshReply) error {
	f := w.readFollowed().at(from.Commit)
	if f.Put == "" { // the state of following was not stored yet
		if f.Put = known.String(); from.Commit == w.Snapshot().Commit {
			f.Put = from.Commit.String()
		}
	}
	var err error
	f.Tip, f.Checked, f.Why = tip.String(), time.Now(), ""
	switch {
	case from.Branch != branch:
		f.Why = "HEAD is not on " + branch
	case from.Commit == tip:
		f.Put = tip.String()
	default:
		f.Why, err = w.obstacle(ctx, git, from.Commit, f.Put, tip)
		if err == nil && f.Why == "" {
			w.moving <- struct{}{}
			defer func() { <-w.moving }()
			// The commit is stored first, so that after a kill the changes of the switch do not count as changes of the user.
			f.Next = tip.String()
			if err := w.noteFollowed(f); err != nil {
				return err
			}
			f.Next = ""
			var moved control.SwitchReply
			moved, err = w.MoveTo(ctx, git, checkout.SwitchIntent{Ref: branch, Forward: tip.String()}, func(control.Progress) {})
			var in fault.RefusalError
			var busy fault.GitBusyError
			switch {
			case errors.As(err, &in), errors.As(err, &busy), errors.Is(err, gitdir.ErrLocked):
				f.Why, err = err.Error(), nil // the failed switch is only a reason in the reply; the next refresh tries again
			case err == nil:
				reply.Moved, reply.Paths = true, moved.Paths
				f.Put, f.Moved = tip.String(), time.Now()
				w.Log.Info("followed", zap.String("dir", w.Mount.Dir), zap.String("branch", branch),
					zap.Stringer("commit", tip), zap.Int64("paths", moved.Paths))
			}
		}
	}
	reply.Why = f.Why
	if err != nil {
		return err
	}
	return w.noteFollowed(f)
}

// obstacle returns the reason why changes of the user prevent the switch to the commit tip, or "" if no change prevents
// it. put is the commit to which following last set HEAD.
func (w *Follower) obstacle(ctx context.Context, git *gitdir.Dir, head object.ID, put string,
	tip object.ID) (string, error) {
	if head.String() != put && !git.Reaches(ctx, head, tip) {
		return "branch has commits of its own", nil
	}
	if !w.Mount.Writable {
		return "", nil
	}
	paths, err := git.Changes(ctx, false)
	switch {
	case err != nil:
		return "", err
	case len(paths) == 1:
		return "there are local changes: " + paths[0], nil
	case len(paths) > 1:
		return fmt.Sprintf("there are local changes: %s and %d more", paths[0], len(paths)-1), nil
	}
	return "", nil
}

// Unchanged reports whether a writable mount is in exactly the state to which following has switched it. If ignored is
// true, files that git ignores count as changes of the user.
func (w *Follower) Unchanged(ctx context.Context, ignored bool) bool {
	if w == nil || !w.On || !w.Mount.Writable {
		return false
	}
	git := w.Git()
	if git == nil {
		return false
	}
	select { // during a switch, a part of the paths has changed
	case w.moving <- struct{}{}:
		defer func() { <-w.moving }()
	case <-ctx.Done():
		return false
	}
	branch := strings.TrimPrefix(w.Snapshot().Ref, "refs/heads/")
	head, err := git.Head(ctx)
	f := w.readFollowed().at(head.Commit)
	if err != nil || f.Moved.IsZero() || head.Branch != branch || head.Commit.String() != f.Put {
		return false
	}
	if other, err := git.OtherWork(ctx, branch); err != nil || other {
		return false
	}
	paths, err := git.Changes(ctx, ignored)
	return err == nil && len(paths) == 0
}

// readFollowed returns the state of following, or the zero state if followFile does not exist or cannot be read.
func (w *Follower) readFollowed() (f followed) {
	if text, err := os.ReadFile(filepath.Join(w.Mount.Home, followFile)); err == nil && json.Unmarshal(text, &f) != nil {
		return followed{}
	}
	return f
}

// noteFollowed stores the state of following in followFile.
func (w *Follower) noteFollowed(f followed) error {
	text, err := json.Marshal(f)
	if err == nil {
		err = disk.WriteFile(filepath.Join(w.Mount.Home, followFile), append(text, '\n'), 0o600)
	}
	if err != nil {
		return fmt.Errorf("store the state of following: %w", err)
	}
	return nil
}

// Status returns the state of following for the mount's status, or nil if the mount does not follow its branch.
func (w *Follower) Status() *control.FollowStatus {
	if w == nil || !w.On {
		return nil
	}
	f := w.readFollowed()
	s := &control.FollowStatus{Branch: statedir.ShortRef(w.Snapshot().Ref), Checked: f.Checked, Moved: f.Moved, Why: f.Why}
	s.Commit, s.Tracking = f.Tip, w.tracking(s.Branch)
	return s
}
