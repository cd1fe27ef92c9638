// Package review makes the acts of users on the sessions of a repository that the server has: annotations, approvals,
// the merge of a session into a branch, and others. The REST API and the page use it.
//
// An act is a push. It changes refs in the formats of the packages below session, by a push that the server makes
// itself (receive.Request), with the token of the user. So the same rules, policy, limits, audit entries and events
// apply as to a push by git, and clients see no difference. An act compares and swaps the refs that it changes; if
// another push was faster, it is made again with the new state.
//
// The caller has checked that the token allows the repository to be read. This package checks that it allows pushes.
package review

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/git/packedrefs"
	"github.com/artifactfs/artifactfs/git/read"
	"github.com/artifactfs/artifactfs/server/access"
	"github.com/artifactfs/artifactfs/server/gate"
	"github.com/artifactfs/artifactfs/server/gitread"
	"github.com/artifactfs/artifactfs/server/places"
	"github.com/artifactfs/artifactfs/server/receive"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/server/replica"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/approval"
	"github.com/artifactfs/artifactfs/session/reffile"
	"github.com/artifactfs/artifactfs/session/review"
	"github.com/artifactfs/artifactfs/session/thin"
)

// Acts that read from git directories have places of their own.
const (
	readers = 16 // acts that read at the same time; others wait
	// answerTime is the maximum duration of an act, and the time for which it waits for a place.
	answerTime = time.Minute
)

// Pusher receives pushes that the server makes itself. *githttp.Server implements it.
type Pusher interface {
	// Push returns an error of type *receive.Refused if the push was refused.
	Push(ctx context.Context, r receive.Request) error
}

// Replicas returns git directories. *replica.Set implements it.
type Replicas interface {
	Acquire(ctx context.Context, repoID string) (*replica.Replica, error)
	Git() gitcmd.Confined
	Scratch() (string, error)
}

// Options configures a Service. All fields except Now are required.
type Options struct {
	Records  *records.DB
	Replicas Replicas
	Pusher   Pusher
	Memory   *places.Memory // of all git processes; nil: no limit for all together
	Log      *zap.Logger
	Now      func() time.Time // nil for time.Now
}

// Service makes acts. It may be used from any goroutine.
type Service struct {
	o       Options
	reading *places.Places
	pool    read.Pool
}

// New returns a Service.
func New(o Options) *Service {
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Service{o: o, pool: read.Pool{Memory: o.Memory},
		reading: places.New(places.Options{Most: readers, MostOf: places.PartsOfReads(readers), Patience: answerTime,
			Memory: o.Memory,
			Class:  places.Reads})}
}

// Close ends the git processes that are kept for later acts.
func (s *Service) Close() error { return s.pool.Close() }

// By is the user who makes an act, and the request to which the act belongs.
type By struct {
	Token records.Token
	Cause records.Cause // for the audit log
	// Done is called when a push of the act has been made, whose transaction has written the audit entry; nil for none.
	Done func()
}

// actor returns the name of the user in records.
func (b By) actor() string { return gate.Actor(b.Token) }

// Kind is the kind of a Problem.
type Kind = review.Kind

const (
	Invalid   = review.Invalid
	Missing   = review.Missing
	Forbidden = review.Forbidden // the token does not allow the act
	Conflict  = review.Conflict
	Refused   = review.Refused
)

// Problem is the reason why an act is not possible.
type Problem = review.Problem

// problem returns a Problem of a kind.
func problem(kind Kind, format string, args ...any) error {
	return &Problem{Kind: kind, Text: fmt.Sprintf(format, args...)}
}

// allowed returns an error unless acts of a token on a repository are possible.
func (b By) allowed(r records.Repo) error {
	switch {
	case b.Token.Scope != records.WriteScope:
		return problem(Forbidden, "the token allows reading only")
	case r.ReadOnly:
		return problem(Forbidden, "the repository is read-only")
	case r.Status != records.Ready && r.Status != "":
		return problem(Conflict, "the repository is %s", r.Status)
	}
	return nil
}

// view is the state of a repository at one moment. It is used by one goroutine.
type view struct {
	s      *Service
	repo   records.Repo
	format object.Format
	git    gitread.Repo
	dir    *replica.Replica
	refs   map[string]string
	shown  map[string]string             // like refs, with the refs that thin sessions have in their containers
	thin   map[string]string             // thin sessions that shown lacks, and why
	copy   *replica.Copy                 // workspace for new objects; nil until it is needed
	points map[string]session.Checkpoint // newest checkpoints of sessions, as far as they were looked up
}

// look calls a function with the present state of a repository.
func (s *Service) look(ctx context.Context, by By, repo records.Repo, do func(v *view) error) error {
	place, err := s.reading.Enter(ctx, places.Large, places.Of(repo.Namespace, repo.ID, by.Token.ID)...)
	if err != nil {
		return err
	}
	defer place.Release()
	dir, err := s.o.Replicas.Acquire(ctx, repo.ID)
	if err != nil {
		return err
	}
	defer dir.Release()
	from, err := dir.Unpacked(ctx)
	if err != nil {
		return err
	}
	v := &view{s: s, repo: dir.Repo, dir: dir, points: map[string]session.Checkpoint{}, thin: from.Thin,
		git: gitread.Repo{Repo: read.Repo{Dir: from.Dir, Git: s.o.Replicas.Git(), Pool: &s.pool}}}
	v.git.Git.Memory = place.Memory(v.git.Git.Memory)
	defer func() {
		if v.copy != nil {
			v.copy.Remove()
		}
	}()
	if v.format, err = object.ParseFormat(dir.Repo.ObjectFormat); err != nil {
		return err
	}
	if v.refs, err = readRefs(dir.Dir); err != nil {
		return err
	}
	v.shown = from.With(v.refs)
	return do(v)
}

// readRefs returns the refs of a replica by their names.
func readRefs(dir string) (map[string]string, error) {
	text, err := os.ReadFile(filepath.Join(dir, "packed-refs"))
	if err != nil {
		return nil, fmt.Errorf("read refs: %w", err)
	}
	list, err := packedrefs.Decode(text)
	if err != nil {
		return nil, fmt.Errorf("read refs: %w", err)
	}
	refs := make(map[string]string, len(list))
	for _, r := range list {
		refs[r.Name] = r.ID.String()
	}
	return refs, nil
}

// session returns an error unless the repository has a session.
func (v *view) session(name string) error {
	if session.ValidName(name) != nil || v.refs[session.MetaRef(name)] == "" {
		return problem(Missing, "the repository has no session %.140q", name)
	}
	return nil
}

// whole returns an error if the repository lacks the objects that a session is based on, so that its commits and
// checkpoints cannot become those of refs of the repository.
func (v *view) whole(name string) error {
	if v.refs[thin.Ref(name)] == "" {
		return nil
	}
	return problem(Conflict, "session %s is thin: this repository lacks the history on which it is based; "+
		"artifactfs session promote pushes its commits to the repository that has it", name)
}

// of returns the refs of the checkpoints and the pins of a session.
func (v *view) of(name string) map[string]string {
	own := map[string]string{}
	for ref, id := range v.shown {
		if strings.HasPrefix(ref, session.LanePrefix(name)) || strings.HasPrefix(ref, session.PinPrefix(name)) {
			own[ref] = id
		}
	}
	return own
}

// file returns the contents of the file of a ref, nil if the ref does not exist.
func (v *view) file(ctx context.Context, f reffile.File) (text []byte, err error) {
	id := v.refs[f.Ref]
	if id == "" {
		return nil, nil
	}
	found := false
	err = v.git.Contents(ctx, []string{id + ":" + f.Name}, reffile.MaxSize, func(_ int, c read.Content) {
		text, found = c.Bytes, c.ID != "" && c.Type == object.Blob.String()
	})
	switch {
	case err != nil:
		return nil, err
	case !found, text == nil:
		return nil, fmt.Errorf("read %s: %w %s", f.Ref, reffile.ErrNotFile, f.Name)
	}
	return text, nil
}

// zero returns the id that stands for a ref that does not exist.
func (v *view) zero() string { return strings.Repeat("0", 2*v.format.Size()) }

// update returns the change of a ref from its value in the view. The parameter id is "" to remove it.
func (v *view) update(ref, id string) records.RefUpdate {
	u := records.RefUpdate{Name: ref, Old: v.refs[ref], New: id}
	if u.Old == "" {
		u.Old = v.zero()
	}
	if u.New == "" {
		u.New = v.zero()
	}
	return u
}

// change is what an attempt of an act changes.
type change struct {
	updates []records.RefUpdate
	merged  map[string]string // sessions by the branches into which they are merged
	objects []odb.Outgoing
	// pack writes the pack of the new objects instead of the field objects. It is nil if objects contains them.
	pack func(ctx context.Context, w io.Writer) error
}

// act makes an act. The function plan decides what is changed in the state v; nothing is changed if the result has no
// updates. If another push changes one of the refs in the meantime, act calls plan again. Errors of plan are returned
// as they are.
func (s *Service) act(ctx context.Context, by By, repo records.Repo,
	plan func(ctx context.Context, v *view) (change, error)) error {
	if err := by.allowed(repo); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	for try := range reffile.MaxTries {
		if try > 0 && !reffile.Pauses.Wait(ctx, try) {
			return ctx.Err()
		}
		moved, err := s.try(ctx, by, repo, plan)
		if !moved {
			return err
		}
	}
	return problem(Conflict, "the refs of the act were changed by others all the time, try again")
}

// try makes one attempt of an act. It returns true if another attempt may succeed, because others have changed refs in
// the meantime.
func (s *Service) try(ctx context.Context, by By, repo records.Repo,
	plan func(ctx context.Context, v *view) (change, error)) (bool, error) {
	var updates []records.RefUpdate
	err := s.look(ctx, by, repo, func(v *view) error {
		c, err := plan(ctx, v)
		if err != nil || len(c.updates) == 0 {
			return err
		}
		updates = c.updates
		r := receive.Request{Repo: v.repo, Updates: c.updates, Merged: c.merged, Pack: c.pack}
		if r.Pack == nil {
			r.Pack = func(ctx context.Context, w io.Writer) error { return odb.WritePack(ctx, w, v.format, c.objects) }
		}
		return s.push(ctx, by, r)
	})
	var refused *receive.Refused
	switch {
	case !errors.As(err, &refused):
		return false, err
	case errors.Is(err, receive.ErrChanged):
		return true, nil
	}
	moved, lookErr := s.moved(ctx, by, repo, updates)
	if moved || lookErr != nil {
		return moved, lookErr
	}
	return false, explain(refused)
}

// push makes a push by a user.
func (s *Service) push(ctx context.Context, by By, r receive.Request) error {
	r.Token, r.Cause = by.Token, by.Cause
	err := s.o.Pusher.Push(ctx, r)
	if err == nil && by.Done != nil {
		by.Done()
	}
	return err
}

// moved reports whether a ref has another value than the one that an update expects.
func (s *Service) moved(ctx context.Context, by By, repo records.Repo,
	updates []records.RefUpdate) (moved bool, err error) {
	err = s.look(ctx, by, repo, func(v *view) error {
		for _, u := range updates {
			moved = moved || v.update(u.Name, "").Old != u.Old
		}
		return nil
	})
	return moved, err
}

// explain returns the Problem of a push that was refused.
func explain(r *receive.Refused) error {
	var rules access.Refused
	var policy approval.Refused
	switch {
	case errors.As(r.Reason, &rules):
		return problem(Forbidden, "%v", r)
	case errors.As(r.Reason, &policy) && (r.Ref == approval.PolicyRef || strings.HasPrefix(r.Ref, approval.Prefix)):
		return problem(Forbidden, "%v", policy) // these rules are about the token
	case errors.As(r.Reason, &policy):
		return problem(Refused, "%v", policy)
	}
	return problem(Conflict, "%v", r)
}

// edit replaces the file of a ref by the result of the function edit, which gets the present contents. Nothing is
// changed if the result is nil.
func (s *Service) edit(ctx context.Context, by By, repo records.Repo, f reffile.File, message string,
	edit func(ctx context.Context, v *view, now []byte) ([]byte, error)) error {
	return s.act(ctx, by, repo, func(ctx context.Context, v *view) (c change, err error) {
		now, err := v.file(ctx, f)
		if err != nil {
			return c, err
		}
		content, err := edit(ctx, v, now)
		if err != nil || content == nil {
			return c, err
		}
		var parent object.ID
		if id := v.refs[f.Ref]; id != "" {
			if parent, err = object.ParseIDOf(v.format, id); err != nil {
				return c, err
			}
		}
		next, objects, err := f.Encode(v.format, parent, content, message, s.o.Now())
		return change{updates: []records.RefUpdate{v.update(f.Ref, next.String())}, objects: objects}, err
	})
}
