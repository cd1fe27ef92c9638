// Package keeper keeps the locks that one mount knows up to date: it reads the locks of other sessions from the session
// remote, and renews the locks of the mount's own session. Package locks uses them to decide which paths are locked.
//
// A mount requests other refs from the session remote anyway. It does so by Keeper.Refs, which also requests the refs
// of the locks and of the policy. Run sends a request only if Keeper.Refs was not called for the duration Interval. The
// file with the locks is fetched only if its ref has changed.
package keeper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/signal"
	"github.com/artifactfs/artifactfs/session/approval"
	"github.com/artifactfs/artifactfs/session/locks"
	"github.com/artifactfs/artifactfs/session/reffile"
)

const (
	// Interval is the maximum time between two requests for the refs of the locks and of the policy.
	Interval = 30 * time.Second
	// retry is the time after which a failed renewal is repeated.
	retry = 2 * time.Second
	// timeout is the timeout for reading or renewing locks.
	timeout = time.Minute
)

// File names the file with the locks on a session remote.
var File = reffile.File{Ref: locks.Ref, Name: locks.FileName}

// policyFile names the file with the policy on a session remote. The policy states what mounts do if a program changes
// a locked path.
var policyFile = reffile.File{Ref: approval.PolicyRef, Name: approval.PolicyFile}

// Keeper keeps the locks that one mount knows up to date. Its methods may be called from any goroutine.
type Keeper struct {
	Session string            // session of the mount
	Dir     string            // directory for temporary files
	Saved   string            // path of a file that stores the known locks for the next process of the mount
	Remote  *transport.Remote // session remote
	View    *locks.View       // decides which paths are locked; the Keeper sets its locks
	Log     *zap.Logger
	// Listed contains the refs as they were when the mount was made, so that Run need not request them first; nil if
	// unknown.
	Listed *Listed
	// Open opens another connection to the session remote, for pushes.
	Open func() (remote *transport.Remote, closed func(), err error)
	// Before is called before new locks of other sessions are set in View. After is called afterwards, with these
	// locks.
	Before func(ctx context.Context)
	After  func(added []locks.Lock)

	wake chan struct{} // holds a token if Run has to compute again when the next request and renewal are due

	reading sync.Mutex // held while the files are fetched and the view is set

	mu     sync.Mutex
	asked  time.Time  // time of the last successful request for the refs
	known  bool       // the fields below are set
	commit object.ID  // commit with the locks that View has; zero if there are none
	policy object.ID  // commit with the policy that contains mode
	mode   locks.Mode // mode of the policy
	file   locks.File // the locks that View has
	failed bool       // whether the last renewal of locks has failed
}

// Listed contains the commits of the refs that a Keeper reads. A commit is zero if its ref does not exist.
type Listed struct{ Locks, Policy object.ID }

// saved is the contents of the file Keeper.Saved.
type saved struct {
	Mode  locks.Mode `json:"mode"`
	Locks locks.File `json:"locks"`
}

// New initializes k and returns it. It sets the locks in k.View that the previous process of the mount has stored in
// k.Saved.
func New(k *Keeper) *Keeper {
	k.wake, k.mode = make(chan struct{}, 1), locks.Refuse
	var last saved
	if text, err := os.ReadFile(k.Saved); err == nil && json.Unmarshal(text, &last) == nil {
		k.View.Set(last.Locks, last.Mode)
	}
	return k
}

// save stores the locks in the file k.Saved for the next process of the mount. If there are no locks, it removes the
// file.
func (k *Keeper) save(file locks.File, mode locks.Mode) {
	var err error
	if len(file.Locks) == 0 {
		if err = os.Remove(k.Saved); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	} else {
		var text []byte
		if text, err = json.Marshal(saved{mode, file}); err == nil {
			err = disk.WriteFileUnsynced(k.Saved, text, 0o600)
		}
	}
	if err != nil {
		k.Log.Warn("store locks for the next mount", zap.String("session", k.Session), zap.Error(err))
	}
}

// Refs lists refs of the session remote, as transport.Remote.Refs does. It also reads the locks if they have changed.
// The result may contain refs other than those with the prefixes.
func (k *Keeper) Refs(ctx context.Context, prefixes ...string) (transport.Refs, error) {
	refs, err := k.Remote.Refs(ctx, append(prefixes, locks.Ref, approval.PolicyRef))
	if err != nil {
		return refs, err
	}
	var l Listed
	for _, r := range refs.List {
		switch r.Name {
		case locks.Ref:
			l.Locks = r.ID
		case approval.PolicyRef:
			l.Policy = r.ID
		}
	}
	k.readIfChanged(ctx, l)
	return refs, nil
}

// readIfChanged reads the locks and the policy if their refs have changed, and logs errors. l contains the present
// commits of the refs.
func (k *Keeper) readIfChanged(ctx context.Context, l Listed) {
	k.mu.Lock()
	k.asked = time.Now()
	k.mu.Unlock()
	if err := k.read(ctx, l.Locks, l.Policy); err != nil && ctx.Err() == nil {
		k.Log.Warn("read locks of the session remote", zap.String("session", k.Session), zap.Error(err))
	}
}

// read fetches the locks and the policy if they have changed, and sets them in k.View. commit and policy are the
// commits of their refs. It fetches the policy only if there are locks.
func (k *Keeper) read(ctx context.Context, commit, policy object.ID) error {
	k.reading.Lock()
	defer k.reading.Unlock()
	k.mu.Lock()
	same := k.known && commit == k.commit && (policy == k.policy || commit.IsZero())
	mode, file, known := k.mode, k.file, commit == k.commit // commit is zero at first, which has no locks
	samePolicy := policy == k.policy
	k.mu.Unlock()
	if same {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	store := &reffile.Store{Remote: k.Remote, Dir: k.Dir}
	if !known {
		file = locks.File{}
		if !commit.IsZero() {
			v, err := store.ReadAt(ctx, File, commit)
			if err != nil {
				return err
			}
			if file, err = locks.Parse(v.Content); err != nil { // the known locks remain; the file is not fetched again
				k.mu.Lock()
				k.commit = commit
				k.mu.Unlock()
				return err
			}
		}
	}
	if !samePolicy && !commit.IsZero() {
		mode = locks.Refuse
		if !policy.IsZero() {
			v, err := store.ReadAt(ctx, policyFile, policy)
			if err != nil {
				return err
			}
			if mode, err = Mode(v.Content); err != nil {
				k.Log.Warn("read policy of the session remote: locks are refused", zap.String("session", k.Session), zap.Error(err))
			}
		}
	} else if commit.IsZero() {
		policy = k.policy // not read
	}
	k.set(ctx, commit, file, policy, mode)
	return nil
}

// Mode returns the reaction to changes of locked paths that a policy requires. If the policy is invalid, Mode returns
// locks.Refuse and the error.
func Mode(policy []byte) (locks.Mode, error) {
	p, err := approval.ParsePolicy(policy)
	if err != nil || p.Locks == "" {
		return locks.Refuse, err
	}
	return locks.Mode(p.Locks), nil
}

// set stores the locks and the mode in k, in k.Saved and in k.View, and calls k.Before and k.After if there are new
// locks of other sessions. The caller holds k.reading.
func (k *Keeper) set(ctx context.Context, commit object.ID, file locks.File, policy object.ID, mode locks.Mode) {
	k.mu.Lock()
	k.known, k.commit, k.file, k.policy, k.mode = true, commit, file, policy, mode
	k.mu.Unlock()
	k.save(file, mode)
	if len(k.View.New(file, mode)) > 0 {
		k.Before(ctx)
	}
	if added := k.View.Set(file, mode); len(added) > 0 {
		k.Log.Info("other sessions have locked paths", zap.String("session", k.Session), zap.Int("locks", len(added)),
			zap.String("first", added[0].Pattern), zap.String("by", added[0].Holder()))
		k.After(added)
	}
	k.reschedule()
}

// Changed sets the locks to v, a version of the file that this process has just read or written.
func (k *Keeper) Changed(ctx context.Context, v reffile.Version) {
	file, err := locks.Parse(v.Content)
	if err != nil {
		return
	}
	k.reading.Lock()
	defer k.reading.Unlock()
	k.mu.Lock()
	policy, mode := k.policy, k.mode
	k.mu.Unlock()
	k.set(ctx, v.Commit, file, policy, mode)
}

// reschedule makes Run compute again when the next request and renewal are due.
func (k *Keeper) reschedule() {
	signal.Send(k.wake)
}

// Run reads and renews locks until ctx ends. If the session remote cannot be reached, the known locks remain in force
// until they expire.
func (k *Keeper) Run(ctx context.Context) {
	if k.Listed != nil {
		k.readIfChanged(ctx, *k.Listed)
	}
	for ctx.Err() == nil {
		now := time.Now()
		look, renew := k.due()
		if !now.Before(renew) && !renew.IsZero() {
			err := k.renew(ctx)
			if err != nil && ctx.Err() == nil {
				k.Log.Warn("renew locks of the session", zap.String("session", k.Session), zap.Error(err))
			}
			k.mu.Lock()
			k.failed = err != nil
			k.mu.Unlock()
		}
		if !now.Before(look) {
			if _, err := k.Refs(ctx); err != nil {
				k.Log.Debug("ask for locks", zap.String("session", k.Session), zap.Error(err))
				k.mu.Lock()
				k.asked = now // try again after Interval
				k.mu.Unlock()
			}
		}
		look, renew = k.due()
		next := look
		if !renew.IsZero() && renew.Before(next) {
			next = renew
		}
		wait := time.NewTimer(max(time.Until(next), time.Millisecond))
		select {
		case <-k.wake:
		case <-wait.C:
		case <-ctx.Done():
		}
		wait.Stop()
	}
}

// due returns the times at which the next request for the refs and the next renewal are due. renew is zero if the
// session has no locks.
func (k *Keeper) due() (look, renew time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	renew = k.file.RenewAt(k.Session)
	if soon := time.Now().Add(retry); k.failed && !renew.IsZero() && renew.Before(soon) {
		renew = soon
	}
	return k.asked.Add(Interval), renew
}

// errLost means that locks of the session have expired before they could be renewed, or that another session has
// removed them.
var errLost = errors.New("the session has no locks any more")

// renew extends the locks of the mount's session on the session remote. If the session has no locks there any more, it
// logs a warning and sets the present locks.
func (k *Keeper) renew(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	remote, closed, err := k.Open()
	if err != nil {
		return err
	}
	defer closed()
	store := &reffile.Store{Remote: remote, Dir: k.Dir}
	v, err := Change(ctx, store, "renew locks of "+k.Session, func(f *locks.File) error {
		if !f.Renew(k.Session, time.Now()) {
			return errLost
		}
		return nil
	})
	if errors.Is(err, errLost) {
		k.Log.Warn("locks of the session have expired or were removed", zap.String("session", k.Session))
		if v, err = store.Read(ctx, File); err != nil {
			return err
		}
		k.reading.Lock()
		defer k.reading.Unlock()
		file, err := locks.Parse(v.Content)
		if err != nil {
			return err
		}
		file.ReleaseAll(k.Session) // they have expired
		k.mu.Lock()
		policy, mode := k.policy, k.mode
		k.mu.Unlock()
		k.set(ctx, v.Commit, file, policy, mode)
		return nil
	}
	if err == nil {
		k.Changed(ctx, v)
	}
	return err
}

// Store changes files on a session remote. It is implemented by *reffile.Store.
type Store interface {
	Change(ctx context.Context, f reffile.File, message string,
		edit func(now reffile.Version) ([]byte, error)) (reffile.Version, error)
}

// Change changes the locks on a session remote. It passes the present locks to the function edit. If another writer
// changes the locks at the same time, it calls edit again with the new locks. It returns errors of edit unchanged.
func Change(ctx context.Context, s Store, message string, edit func(f *locks.File) error) (reffile.Version, error) {
	return s.Change(ctx, File, message+"\n", func(now reffile.Version) ([]byte, error) {
		f, err := locks.Parse(now.Content)
		if err != nil {
			return nil, fmt.Errorf("%w (git push --delete removes the ref %s with all locks)", err, locks.Ref)
		}
		if err := edit(&f); err != nil {
			return nil, err
		}
		return f.Encode()
	})
}
