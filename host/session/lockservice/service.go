// Package lockservice answers requests that list, acquire and release the locks of sessions.
package lockservice

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/host/session/catalog"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/approval"
	"github.com/artifactfs/artifactfs/session/locks"
	"github.com/artifactfs/artifactfs/session/locks/keeper"
	"github.com/artifactfs/artifactfs/session/reffile"
	"github.com/artifactfs/artifactfs/session/thin"
)

// Locks answers requests that list, acquire and release locks. Its methods are safe for concurrent use.
type Locks struct{ Catalog *catalog.Catalog }

// errEmbedded means that a session has only the embedded session remote, which no other session uses, so that locks
// have no effect.
var errEmbedded = errors.New("session has only the embedded session remote, which no other session uses")

// place is the session remote whose locks a request reads or changes.
type place struct {
	session string           // session of the request; "" if it has none
	mount   *catalog.Mounted // mount of the session; nil if it is not mounted
	remote  *thin.Remote
	store   *reffile.Store
}

// SessionLocks changes the locks on a session remote if the request asks for it, and returns all locks there.
func (s Locks) SessionLocks(ctx context.Context, r control.SessionLocksRequest) (control.SessionLocksReply, error) {
	verb, object := r.Op, strings.Join(r.Patterns, " ")
	if r.Op == control.LockList {
		verb, object = "list locks", cmp.Or(r.Of, "the session remote")
	}
	reply, err := s.answer(ctx, r)
	if err == nil {
		return reply, nil
	}
	var held *locks.HeldError
	e := &control.Error{Code: control.ExitFailed, Verb: verb, Object: object, Cause: err.Error()}
	switch {
	case errors.As(err, &held):
		e.Kind, e.Hint = control.CodeConflict, "wait, or run artifactfs session unlock "+held.Lock.ID+" --force -m REASON"
	case errors.Is(err, locks.ErrNone):
		e.Kind, e.Hint = control.CodeNotFound, "run artifactfs session locks to list the locks"
	case errors.Is(err, locks.ErrInvalid):
		e.Code, e.Kind = control.ExitUsage, control.CodeUsage
	case errors.Is(err, errEmbedded):
		e.Kind, e.Hint = control.CodeUnsupported, "mount with --session-remote URL to share a session remote"
	default:
		e = fault.ExplainSessionAt(verb, object, err)
	}
	return reply, e
}

func (s Locks) answer(ctx context.Context, r control.SessionLocksRequest) (reply control.SessionLocksReply, err error) {
	p, err := s.open(ctx, r)
	if err != nil {
		return reply, err
	}
	defer p.remote.Close()
	file, err := p.policyAndLocks(ctx, &reply)
	if err != nil {
		return reply, fault.SessionRemote(p.remote, err)
	}
	var done []locks.Lock
	if r.Op != control.LockList {
		if file, done, err = p.change(ctx, r); err != nil {
			return reply, err
		}
	}
	file.Prune(time.Now())
	reply.Session, reply.Locks, reply.Done = p.session, p.shown(file.Locks), p.shown(done)
	for _, f := range file.Forced {
		reply.Forced = append(reply.Forced, control.ForcedUnlock{
			Lock: p.shown([]locks.Lock{f.Lock})[0], Session: f.Session, Actor: f.Actor, Host: f.Host, Time: f.Time,
			Reason: f.Reason,
		})
	}
	if r.Op == control.LockAcquire {
		reply.Changed = s.changed(p, done)
	}
	return reply, nil
}

// open opens the session remote whose locks the request r reads or changes. The caller closes it.
func (s Locks) open(ctx context.Context, r control.SessionLocksRequest) (p place, err error) {
	p.session = r.Of
	o := control.MountRequest{Session: r.Of, SessionOptions: control.SessionOptions{Remote: r.SessionRemote}}
	if r.SessionRemote == "" {
		if p.mount, err = s.Catalog.Mounts.Mounted(ctx, r.Of); err != nil {
			return p, err
		}
		if p.mount != nil {
			o, p.session = p.mount.Request(), p.mount.Session
			o.Session, o.SessionOptions = p.session, p.mount.Agent.Options()
		} else {
			record, err := statedir.ReadRecord(filepath.Join(s.Catalog.Homes.Dir(), r.Of))
			if errors.Is(err, os.ErrNotExist) {
				err = statedir.ErrNoSession
			}
			if err != nil {
				return p, err
			}
			o.Remote, o.SessionOptions = record.Remote, record.Carried
		}
	}
	if r.Op == control.LockAcquire && p.session == "" {
		return p, fmt.Errorf("%w: no session: add -C SESSION", locks.ErrInvalid)
	}
	var kind string
	if p.remote, kind, err = s.Catalog.Remotes.Session(o); err != nil {
		return p, err
	}
	switch {
	case p.remote == nil && kind == control.RemoteNone:
		return p, fault.ErrNoSessionRemote
	case p.remote == nil:
		return p, errEmbedded
	}
	p.store = &reffile.Store{Remote: p.remote.Remote, Dir: s.Catalog.State}
	return p, nil
}

// policyAndLocks returns the locks on the session remote. It sets the mode of the reply to that of the policy there,
// which states whether locks are allowed.
func (p place) policyAndLocks(ctx context.Context, reply *control.SessionLocksReply) (locks.File, error) {
	policy, err := p.store.Read(ctx, reffile.File{Ref: approval.PolicyRef, Name: approval.PolicyFile})
	if err != nil {
		return locks.File{}, err
	}
	mode, _ := keeper.Mode(policy.Content) // locks are refused if the policy is not valid
	reply.Mode = string(mode)
	v, err := p.store.Read(ctx, keeper.File)
	if err != nil {
		return locks.File{}, err
	}
	return locks.Parse(v.Content)
}

// change acquires or releases the locks of the request r. It returns all locks after that, and those that were acquired
// or released.
func (p place) change(ctx context.Context,
	r control.SessionLocksRequest) (file locks.File, done []locks.Lock, err error) {
	host, _ := os.Hostname()
	by := locks.Caller{Session: p.session, Actor: cmp.Or(r.Actor, session.Actor()), Host: cmp.Or(host, "unknown")}
	// A server that knows the user ignores the name that the client has sent.
	if who, known, err := p.remote.Identity(ctx); err != nil {
		return file, nil, fault.SessionRemote(p.remote, err)
	} else if known {
		by.Actor = who.Actor
	} else {
		by.Actor = strings.TrimSuffix(by.Actor, "@"+by.Host)
	}
	ttl := cmp.Or(r.TTL, locks.DefaultTTL)
	var edited error
	v, err := keeper.Change(ctx, p.store, r.Op+" "+strings.Join(r.Patterns, " "), func(f *locks.File) error {
		if r.Op == control.LockAcquire {
			done, edited = f.Acquire(by, r.Patterns, ttl, r.Reason, time.Now())
		} else {
			done, edited = f.Release(by, r.Patterns, r.Force, r.Reason, time.Now())
		}
		file = *f
		return edited
	})
	switch {
	case edited != nil:
		return file, nil, edited
	case err != nil:
		return file, nil, fault.SessionRemote(p.remote, err)
	}
	if p.mount != nil && p.mount.Locks != nil {
		p.mount.Locks.Changed(ctx, v)
	}
	return file, done, nil
}

// shown converts locks into the form of a reply.
func (p place) shown(list []locks.Lock) []control.SessionLock {
	shown := []control.SessionLock{}
	for _, l := range list {
		shown = append(shown, control.SessionLock{ID: l.ID, Session: l.Session, Actor: l.Actor, Host: l.Host,
			Pattern: l.Pattern,
			Since:   l.Since, Expires: l.Expires, Reason: l.Reason, Mine: l.Session == p.session && p.session != ""})
	}
	return shown
}

// maxChanged is the maximum number of files that a reply names because other mounts of this host have changed them.
const maxChanged = 10

// changed returns one line of text for each file that is covered by the locks in list, and that another mount of this
// host has changed.
func (s Locks) changed(p place, list []locks.Lock) (lines []string) {
	for _, m := range s.Catalog.Mounts.Writable() {
		if m.Session == p.session || m.Locks == nil || m.Locks.Remote.URL() != p.remote.URL() {
			continue
		}
		for _, path := range m.Added() {
			if !slices.ContainsFunc(list,
				func(l locks.Lock) bool { return locks.Covers(l.Pattern, strings.TrimSuffix(path, "/")) }) {
				continue
			}
			if len(lines) == maxChanged {
				return append(lines, "other mounts of this host have changed more of these files")
			}
			lines = append(lines, fmt.Sprintf("%s was changed already in session %s at %s", path, m.Session, m.Dir))
		}
	}
	return lines
}
