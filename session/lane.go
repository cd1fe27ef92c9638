package session

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/control/profile"
	"github.com/artifactfs/artifactfs/git/object"
)

// MainLane is the lane of the first writer of a session.
const MainLane = "main"

var (
	// ErrClosed means that a session cannot be resumed because it is closed or archived.
	ErrClosed = errors.New("session must be reopened first")
	// ErrMoved means that another session has changed a ref on the session remote.
	ErrMoved = errors.New("ref was changed by another session")
)

// lifeStates lists the states of a session that are valid in stored metadata.
var lifeStates = []LifeState{Open, Active, Paused, Resumed, Closed, Archived}

// TransitionError means that the state of a session cannot be changed to the requested one; see Meta.Become.
type TransitionError struct {
	Session  string    // name of the session
	From, To LifeState // state of the session, and requested state
}

// Error returns a text with the name of the session, its state and the requested state.
func (e *TransitionError) Error() string {
	return fmt.Sprintf("session %s is %s and cannot become %s", e.Session, e.From, e.To)
}

// transit sets the state of the session, and appends the change to the history of the session. If the new state is
// Resumed, the session becomes Active, because Resumed is used only in the history.
func (m *Meta) transit(to LifeState, now time.Time, actor, reason string) {
	m.Transitions = append(m.Transitions, Transition{State: to, Time: now, Actor: clip(actor), Reason: clip(reason)})
	if m.State = to; to == Resumed {
		m.State = Active
	}
}

// is reports whether the transitions t and o record the same event. It is used to compare the histories in two versions
// of the metadata.
func (t Transition) is(o Transition) bool {
	return t.State == o.State && t.Time.Equal(o.Time) && t.Actor == o.Actor && t.Reason == o.Reason
}

// clip returns the first maxActor bytes of text without invalid UTF-8. It is applied to texts that come from users and
// other hosts.
func clip(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), maxActor)], "")
}

// lane returns the lane called name, or nil if the session has no lane of that name.
func (m *Meta) lane(name string) *Lane {
	if i := slices.IndexFunc(m.Lanes, func(l Lane) bool { return l.Name == name }); i >= 0 {
		return &m.Lanes[i]
	}
	return nil
}

// ClaimRequest contains the parameters of Claim.
type ClaimRequest struct {
	Session  string // name of the session
	Lane     string // name of the lane; "" means MainLane
	Writer   Writer // writer that wants to hold the lane: the caller
	TakeOver bool   // claim the lane even if another writer holds it or may hold it
	// Lease is the duration of the lease; 0: the lane is held until it is released.
	Lease time.Duration
	// Continued states that Writer is a new process of a daemon that continues a mount without an interruption. If the
	// earlier process holds the lane, the claim is then not recorded in the history of the session.
	Continued bool
	Branches  string // new value of Meta.Branches; "" leaves it unchanged
	Actor     string // user that is recorded in the transition
	Reason    string // reason that is recorded in the transition
}

// Claimed is the result of Claim.
type Claimed struct {
	Meta        Meta // metadata after the claim
	Lane        Lane // the claimed lane
	Interrupted bool // the previous writer has ended without releasing the lane, or its lease has expired
	TookOver    bool // the previous writer had not released the lane, and its process may still run
	Previous    Lane // the lane before the claim, if its writer had another state directory; else zero
}

// Claim makes q.Writer the writer of a lane, in the metadata on this host. It returns a *HeldError if another writer
// holds or may hold the lane, and ErrClosed if the session is closed or archived. If q.Writer holds the lane already,
// the lane does not change. If two hosts claim the same lane at the same time, the first one that pushes the metadata
// to the session remote keeps the lane, and the other one has to call Yield.
func Claim(ctx context.Context, r *Repo, q ClaimRequest) (Claimed, error) {
	if q.Lane == "" {
		q.Lane = MainLane
	}
	var c Claimed
	m, err := ChangeMeta(ctx, r, q.Session, func(m *Meta, now time.Time) (err error) {
		if c, err = m.claim(q, now); err == nil && q.Branches != "" {
			m.Branches = q.Branches
		}
		return err
	})
	if err != nil {
		return Claimed{}, err
	}
	c.Meta, c.Lane = m, *m.lane(q.Lane)
	return c, nil
}

// Copied changes m into the metadata of a copy of the session, which no machine uses: it releases all lanes and closes
// the session. original is a link to the session that was copied, and actor is the user who has copied it.
func (m *Meta) Copied(original, actor string, now time.Time) {
	m.CopyOf = original
	for i := range m.Lanes {
		if l := &m.Lanes[i]; l.Left == nil {
			l.Left = &now
		}
	}
	if m.State != Closed && m.State != Archived {
		m.transit(Closed, now, actor, "copied from "+original)
	}
}

// Ended returns an error that wraps ErrClosed if the session is closed or archived.
func (m *Meta) Ended() error {
	if m.State == Closed && m.CopyOf != "" {
		return fmt.Errorf("resume session %s, which is a closed copy of %s: %w", m.Session, m.CopyOf, ErrClosed)
	}
	if m.State == Closed || m.State == Archived {
		return fmt.Errorf("resume session %s, which is %s: %w", m.Session, m.State, ErrClosed)
	}
	return nil
}

// claim makes q.Writer the writer of the lane q.Lane in m, and records the transitions. It returns the same errors as
// Claim.
func (m *Meta) claim(q ClaimRequest, now time.Time) (c Claimed, err error) {
	if err := m.Ended(); err != nil {
		return c, err
	}
	if err := ValidName(q.Lane); err != nil {
		return c, err
	}
	l := m.lane(q.Lane)
	if l == nil {
		m.Lanes = append(m.Lanes, Lane{Name: q.Lane, Segment: 1, Left: &now})
		l = &m.Lanes[len(m.Lanes)-1]
	} else if l.Left == nil && (l.Writer == q.Writer || q.Continued && l.Writer.Same(q.Writer)) {
		if l.Writer = q.Writer; l.Lease != int64(q.Lease/time.Second) { // an older version has claimed the lane
			l.sign(q.Lease, now)
		}
		return c, nil
	} else if l.Left == nil {
		// Record in the history that the previous writer has not released the lane.
		reason := Interrupted
		if held := m.Held(q.Lane, q.Writer, now); held == nil {
			c.Interrupted = true
		} else if c.TookOver = q.TakeOver; !c.TookOver {
			return c, held
		} else {
			reason = "taken over by " + q.Writer.Host
		}
		if m.State == Active {
			m.transit(Paused, now, q.Actor, reason)
		}
	}
	// Start a new segment if the previous writer had another state directory, because two state directories must never
	// write to the same segment.
	if l.Writer.State != "" && !l.Writer.Same(q.Writer) {
		c.Previous = *l
		l.Segment++
	}
	l.Writer, l.Since, l.Left = q.Writer, now, nil
	l.sign(q.Lease, now)
	if m.worked() {
		m.transit(Resumed, now, q.Actor, q.Reason)
	} else {
		m.transit(Active, now, q.Actor, q.Reason)
	}
	return c, nil
}

// worked reports whether the session was ever active.
func (m *Meta) worked() bool {
	return slices.ContainsFunc(m.Transitions, func(t Transition) bool { return t.State == Active })
}

// Release ends the claim of w on a lane, and returns the metadata after the change. When the last lane of a session is
// released, the session becomes paused; reason and actor are recorded in the history. Release changes nothing if
// another writer has taken over the lane.
func Release(ctx context.Context, r *Repo, session, lane string, w Writer, reason, actor string) (Meta, error) {
	m, err := ChangeMeta(ctx, r, session, func(m *Meta, now time.Time) error {
		l := m.lane(lane)
		if l == nil || l.Left != nil || !l.Writer.Same(w) {
			return nil
		}
		l.Left = &now
		if m.State == Active && !slices.ContainsFunc(m.Lanes, func(l Lane) bool { return l.Left == nil }) {
			m.transit(Paused, now, actor, reason)
		}
		return nil
	})
	return m, err
}

// becomeFrom maps each state that a caller of Become can request to the states from which it can be reached. A request
// for Open reopens the session: the session becomes paused, or open if it was never active.
var becomeFrom = map[LifeState][]LifeState{
	Paused:   {Active},
	Closed:   {Open, Paused, Active},
	Archived: {Open, Paused, Active, Closed},
	Open:     {Closed, Archived},
}

// Become changes the state of the session to t.State, and records t.Actor, t.Reason and the time now in its history. It
// returns a *HeldError if a writer holds or may hold a lane of the session, a *profile.OnHoldError if the session is to
// be archived and is on hold, and a *TransitionError if the table becomeFrom does not allow the change. If the session
// already has the requested state, Become changes nothing.
func (m *Meta) Become(t Transition, now time.Time) error {
	if m.State == t.State || t.State == Open && m.State == Paused {
		return nil
	}
	if !slices.Contains(becomeFrom[t.State], m.State) {
		return &TransitionError{Session: m.Session, From: m.State, To: t.State}
	}
	if err := m.OnHold(m.Session); t.State == Archived && err != nil {
		return err
	}
	for i := range m.Lanes {
		l := &m.Lanes[i]
		if l.Left != nil {
			continue
		}
		if held := m.Held(l.Name, Writer{}, now); held != nil {
			return held
		}
		// The writer's process has ended without releasing the lane, or its lease has expired, so release the lane now.
		l.Left = &now
	}
	if m.State == Active {
		m.transit(Paused, now, t.Actor, Interrupted)
	}
	to := t.State
	if to == Open && m.worked() {
		to = Paused
	}
	if to == m.State { // Paused was requested, and the transition above has set it
		return nil
	}
	reason := t.Reason
	if t.State == Open && reason == "" {
		reason = "reopened"
	}
	m.transit(to, now, t.Actor, reason)
	return nil
}

// Withdraw undoes the claim of w on a lane to which w has written no checkpoint. It releases the lane, and restores the
// lane's entry from the metadata in the commit before, which is older than the claim. So a later Claim treats the
// previous writer as the last writer of the lane. reason and actor are recorded in the history.
func Withdraw(ctx context.Context, r *Repo, session, lane string, w Writer, before object.ID,
	reason, actor string) (Meta, error) {
	was, err := MetaAt(r, r.Format(), before)
	if err != nil {
		return Meta{}, fmt.Errorf("read session %s: %w", session, err)
	}
	if _, err := Release(ctx, r, session, lane, w, reason, actor); err != nil {
		return Meta{}, err
	}
	return ChangeMeta(ctx, r, session, func(m *Meta, _ time.Time) error {
		l, old := m.lane(lane), was.lane(lane)
		if l == nil || old == nil || l.Left == nil || !l.Writer.Same(w) {
			return nil
		}
		left := l.Left
		*l = *old
		if l.Left == nil { // the previous writer had not released the lane before the claim
			l.Left = left
		}
		return nil
	})
}

// YieldRequest contains the parameters of Yield.
type YieldRequest struct {
	Session string    // name of the session
	Lane    string    // lane that Writer writes to
	Writer  Writer    // writer of this state directory: the caller
	Theirs  object.ID // commit of MetaRef on the session remote; its objects must be in the Repo
	Actor   string    // user that is recorded in the transition
}

// Yield merges the metadata of a session on this host into q.Theirs, the newer version that another host has pushed to
// the session remote, and stores the result. It returns the merged metadata, and the lane to which q.Writer writes from
// now on: the same lane, or a new one if the other host has taken over the lane q.Lane. Yield calls Repo.Working, so
// the caller must not be within a call of Repo.Working.
func Yield(ctx context.Context, r *Repo, q YieldRequest) (Meta, Lane, error) {
	defer r.Working()()
	for range changeTries {
		ours, before, err := ReadMeta(r, q.Session)
		if err != nil {
			return Meta{}, Lane{}, err
		}
		theirs, err := MetaAt(r, r.Format(), q.Theirs)
		if err == nil && theirs.Session != q.Session {
			err = fmt.Errorf("%w: metadata belongs to session %.140q", ErrNotMeta, theirs.Session)
		}
		if err != nil {
			return Meta{}, Lane{}, fmt.Errorf("read session %s of the session remote: %w", q.Session, err)
		}
		now := time.Now().UTC()
		was := theirs.Clone()
		lane := theirs.yield(ours, q, now)
		// If the merge adds nothing, use the other host's version. A new commit with the same contents would make the
		// other host call Yield, which would write another new commit, and so on without end.
		if was.Equal(theirs) {
			err = r.Update(ctx, []RefChange{{Name: MetaRef(q.Session), Old: before, New: q.Theirs}})
		} else {
			_, err = writeMeta(ctx, r, theirs, q.Theirs, before, now)
		}
		if errors.Is(err, ErrRefMoved) {
			continue
		}
		return theirs, lane, err
	}
	return Meta{}, Lane{}, fmt.Errorf("write session %s: %w", q.Session, ErrRefMoved)
}

// Clone returns a copy of m that does not share the elements of Lanes and Transitions with m.
func (m Meta) Clone() Meta {
	m.Lanes, m.Transitions = slices.Clone(m.Lanes), slices.Clone(m.Transitions)
	return m
}

// yield merges ours, the metadata on this host, into m, the version on the session remote. It adds the transitions,
// lanes and erasures that m lacks. The transitions of ours that follow the last common one are appended to those of m,
// with their times unchanged. If the session was closed on another host but the writer still uses it, it becomes active
// again. yield returns the lane to which the writer writes from now on.
func (m *Meta) yield(ours Meta, q YieldRequest, now time.Time) Lane {
	common := 0
	// Both histories begin with the transitions of the last version of the metadata that both hosts had.
	for common < min(len(m.Transitions), len(ours.Transitions)) && m.Transitions[common].is(ours.Transitions[common]) {
		common++
	}
	m.Transitions = append(m.Transitions, ours.Transitions[common:]...)
	for _, l := range ours.Lanes {
		if m.lane(l.Name) == nil {
			m.Lanes = append(m.Lanes, l)
		}
	}
	for _, e := range ours.Erased {
		m.erase(e)
	}
	m.Profile = profile.Merge(m.Profile, ours.Profile)
	mine := ours.lane(q.Lane)
	if mine == nil {
		mine = &Lane{Name: q.Lane, Writer: q.Writer, Since: now, Segment: 1}
	}
	lane := *mine
	if l := m.lane(q.Lane); l.Writer.Same(q.Writer) || l.Writer == (Writer{}) {
		*l = lane
	} else {
		var raw [2]byte
		rand.Read(raw[:])
		lane.Name, lane.Segment, lane.Since = laneName(q.Lane, q.Writer.Host, hex.EncodeToString(raw[:])), 1, now
		lane.sign(time.Duration(lane.Lease)*time.Second, now)
		m.Lanes = append(m.Lanes, lane)
		m.Transitions = append(m.Transitions, Transition{State: Active, Time: now, Actor: clip(q.Actor),
			Reason: clip("lane " + q.Lane + " is used by " + l.Writer.Host + ", continuing in " + lane.Name)})
	}
	if lane.Left == nil {
		// After the end of the writer's lease, another host may have closed the session.
		if n := len(m.Transitions); n > 0 && slices.Contains([]LifeState{Closed, Archived}, m.Transitions[n-1].State) {
			m.transit(Resumed, now, q.Actor, "still mounted on "+q.Writer.Host)
		}
		m.State = Active
	}
	return lane
}

// laneName returns the name of a new lane: LANE-HOST-CHANCE. lane is the name of the old lane, and chance is a random
// text that makes the name unique. Characters of host that are not valid in the name of a lane become "-".
func laneName(lane, host, chance string) string {
	host = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' {
			return r
		}
		return '-'
	}, host)
	lane, _, _ = strings.Cut(lane, "-") // drop the host and random text of a lane that was itself created by yield
	return lane + "-" + host[:min(len(host), 40)] + "-" + chance
}

// SetPin pins a checkpoint: it creates the pin called name, which keeps GC from removing the checkpoint. If a pin of
// that name exists, SetPin moves it to the checkpoint.
func SetPin(ctx context.Context, r *Repo, session, name string, p Checkpoint) error {
	if err := ValidPin(name); err != nil {
		return err
	}
	if err := r.Update(ctx, []RefChange{{Name: PinPrefix(session) + name, New: p.Commit, Force: true}}); err != nil {
		return fmt.Errorf("pin %s: %w", name, err)
	}
	return nil
}

// ErrNoPin means that the session has no pin with the given name.
var ErrNoPin = errors.New("no such pin")

// RemovePin removes the pin called name. It returns ErrNoPin if there is no such pin. The checkpoint itself remains
// until GC removes it.
func RemovePin(ctx context.Context, r *Repo, session, name string) error {
	if err := ValidName(name); err != nil {
		return err
	}
	ref := PinPrefix(session) + name
	id, err := r.Ref(ref)
	if err == nil && id.IsZero() {
		err = ErrNoPin
	}
	if err == nil {
		err = r.Update(ctx, []RefChange{{Name: ref, Old: id}})
	}
	if err != nil {
		return fmt.Errorf("unpin %s: %w", name, err)
	}
	return nil
}
