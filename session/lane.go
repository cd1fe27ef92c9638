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

	"github.com/artifactfs/artifactfs/object"
)

// MainLane is the lane of the first writer of a session.
const MainLane = "main"

var (
	// ErrClosed says that nobody is to go on with a session: it is closed or archived.
	ErrClosed = errors.New("it has to be reopened first")
	// ErrMoved says that somebody else has moved the ref on the session remote.
	ErrMoved = errors.New("another session has moved it")
)

var lifeStates = []LifeState{Open, Active, Paused, Resumed, Closed, Archived}

// HeldError reports that another writer has a lane.
type HeldError struct {
	Session, Lane string
	Writer        Writer
	Since         time.Time // that it is at work
	Life          Life
}

func (e *HeldError) Error() string {
	who := "host " + e.Writer.Host
	if e.Life == Lives {
		who = fmt.Sprintf("process %d on this host", e.Writer.PID)
	}
	since := e.Since.UTC().Format("2006-01-02 15:04:05 MST")
	if e.Life == Unknown {
		return fmt.Sprintf("%s is at work in session %s since %s, or has not said that it is not", who, e.Session, since)
	}
	return fmt.Sprintf("%s is at work in session %s since %s", who, e.Session, since)
}

// TransitionError reports a change of state that is not possible.
type TransitionError struct {
	Session  string
	From, To LifeState
}

func (e *TransitionError) Error() string {
	return fmt.Sprintf("session %s is %s, and cannot become %s", e.Session, e.From, e.To)
}

// transit records a change of state.
func (m *Meta) transit(to LifeState, now time.Time, actor, reason string) {
	m.Transitions = append(m.Transitions, Transition{State: to, Time: now, Actor: clip(actor), Reason: clip(reason)})
	if m.State = to; to == Resumed {
		m.State = Active
	}
}

// is says whether both tell of the same change.
func (t Transition) is(o Transition) bool {
	return t.State == o.State && t.Time.Equal(o.Time) && t.Actor == o.Actor && t.Reason == o.Reason
}

// clip bounds what others say.
func clip(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), maxActor)], "")
}

// lane gives a lane by its name; nil: there is none.
func (m *Meta) lane(name string) *Lane {
	if i := slices.IndexFunc(m.Lanes, func(l Lane) bool { return l.Name == name }); i >= 0 {
		return &m.Lanes[i]
	}
	return nil
}

// Interrupted says whether nobody works in the session though nobody has let go of it: whoever was at work died, or
// at least all of whom that can be told.
func (m Meta) Interrupted() bool {
	held := slices.DeleteFunc(slices.Clone(m.Lanes), func(l Lane) bool { return l.Left != nil })
	return m.State == Active && !slices.ContainsFunc(held, func(l Lane) bool { return l.Writer.Life() != Dead })
}

// ClaimRequest describes the claim of a lane.
type ClaimRequest struct {
	Session  string
	Lane     string // "": MainLane
	Writer   Writer
	TakeOver bool   // also from somebody who seems to be at work in it
	Branches string // becomes Meta.Branches; "": that stays
	Actor    string
	Reason   string
}

// Claimed is the result of Claim.
type Claimed struct {
	Meta        Meta
	Lane        Lane
	Interrupted bool // whoever had the lane before died
	TookOver    bool // from somebody who may still be at work
}

// Claim makes a Writer the one of a lane: HeldError, ErrClosed if that cannot be. Who has the lane already keeps it. Of two
// state directories that claim one at the same time the session remote hears of one first; the other one has to Yield.
func Claim(ctx context.Context, r *Repo, q ClaimRequest) (Claimed, error) {
	if q.Lane == "" {
		q.Lane = MainLane
	}
	var c Claimed
	m, err := changeMeta(ctx, r, q.Session, func(m *Meta, now time.Time) (err error) {
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

func (m *Meta) claim(q ClaimRequest, now time.Time) (c Claimed, err error) {
	if m.State == Closed || m.State == Archived {
		return c, fmt.Errorf("resume session %s, which is %s: %w", m.Session, m.State, ErrClosed)
	}
	if err := ValidName(q.Lane); err != nil {
		return c, err
	}
	l := m.lane(q.Lane)
	if l == nil {
		m.Lanes = append(m.Lanes, Lane{Name: q.Lane, Segment: 1, Left: &now})
		l = &m.Lanes[len(m.Lanes)-1]
	} else if l.Left == nil && l.Writer == q.Writer {
		return c, nil
	} else if l.Left == nil {
		if c, err = l.leave(m.Session, q); err != nil {
			return c, err
		}
		if reason := Interrupted; m.State == Active {
			if c.TookOver {
				reason = "taken over by " + q.Writer.Host
			}
			m.transit(Paused, now, q.Actor, reason)
		}
	}
	if l.Writer.State != "" && !l.Writer.Same(q.Writer) {
		l.Segment++
	}
	l.Writer, l.Since, l.Left = q.Writer, now, nil
	if m.worked() {
		m.transit(Resumed, now, q.Actor, q.Reason)
	} else {
		m.transit(Active, now, q.Actor, q.Reason)
	}
	return c, nil
}

// leave says whether a lane whose writer has not let go of it can be had.
func (l *Lane) leave(session string, q ClaimRequest) (c Claimed, err error) {
	switch life := l.Writer.Life(); {
	case l.Writer.Same(q.Writer) || life == Dead: // of one state directory only one process has a session at a time
		c.Interrupted = true
	case q.TakeOver:
		c.TookOver = true
	default:
		return c, &HeldError{Session: session, Lane: l.Name, Writer: l.Writer, Since: l.Since, Life: life}
	}
	return c, nil
}

// Held returns the other writer that has a lane, or may have it; nil: there is none.
func (m Meta) Held(lane string, w Writer) *HeldError {
	l := m.lane(lane)
	if l == nil || l.Left != nil || l.Writer.Same(w) {
		return nil
	}
	life := l.Writer.Life()
	if life == Dead {
		return nil
	}
	return &HeldError{Session: m.Session, Lane: lane, Writer: l.Writer, Since: l.Since, Life: life}
}

// worked says whether somebody was ever at work.
func (m *Meta) worked() bool {
	return slices.ContainsFunc(m.Transitions, func(t Transition) bool { return t.State == Active })
}

// Release lets go of a lane; with the last one the session is paused. A lane that somebody else has taken over is his.
func Release(ctx context.Context, r *Repo, session, lane string, w Writer, reason, actor string) (Meta, error) {
	m, err := changeMeta(ctx, r, session, func(m *Meta, now time.Time) error {
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

// become says from which states each can be reached by asking for it. Open is that of a session which is reopened: it is
// paused then, unless nobody ever worked in it.
var become = map[LifeState][]LifeState{
	Paused:   {Active},
	Closed:   {Open, Paused, Active},
	Archived: {Open, Paused, Active, Closed},
	Open:     {Closed, Archived},
}

// Transit changes the state of a session that nobody works in: HeldError, TransitionError. One that is in that state
// stays as it is.
func Transit(ctx context.Context, r *Repo, session string, t Transition) (Meta, error) {
	m, err := changeMeta(ctx, r, session, func(m *Meta, now time.Time) error {
		if m.State == t.State || t.State == Open && m.State == Paused {
			return nil
		}
		if !slices.Contains(become[t.State], m.State) {
			return &TransitionError{Session: session, From: m.State, To: t.State}
		}
		for i := range m.Lanes {
			l := &m.Lanes[i]
			if l.Left != nil {
				continue
			}
			if life := l.Writer.Life(); life != Dead {
				return &HeldError{Session: session, Lane: l.Name, Writer: l.Writer, Since: l.Since, Life: life}
			}
			l.Left = &now
		}
		if m.State == Active {
			m.transit(Paused, now, t.Actor, Interrupted)
		}
		to := t.State
		if to == Open && m.worked() {
			to = Paused
		}
		if to == m.State { // a pause of what was interrupted
			return nil
		}
		reason := t.Reason
		if t.State == Open && reason == "" {
			reason = "reopened"
		}
		m.transit(to, now, t.Actor, reason)
		return nil
	})
	return m, err
}

// Withdraw is Release for who has claimed a lane and done nothing in it: it is as before, when MetaRef was at before, so that
// whoever worked in it last finds it so.
func Withdraw(ctx context.Context, r *Repo, session, lane string, w Writer, before object.ID, reason, actor string) (Meta, error) {
	was, err := MetaAt(r, r.Format(), before)
	if err != nil {
		return Meta{}, fmt.Errorf("read session %s: %w", session, err)
	}
	if _, err := Release(ctx, r, session, lane, w, reason, actor); err != nil {
		return Meta{}, err
	}
	return changeMeta(ctx, r, session, func(m *Meta, _ time.Time) error {
		l, old := m.lane(lane), was.lane(lane)
		if l == nil || old == nil || l.Left == nil || !l.Writer.Same(w) {
			return nil
		}
		left := l.Left
		*l = *old
		if l.Left == nil { // whoever had it is known to be dead
			l.Left = left
		}
		return nil
	})
}

// YieldRequest says that somebody else has moved MetaRef on the session remote.
type YieldRequest struct {
	Session string
	Lane    string // that the Writer works in
	Writer  Writer
	Theirs  object.ID // what MetaRef is there; its objects are in the Repo
	Actor   string
}

// Yield puts what is known here of a session on top of what is known at the session remote. If somebody there has taken
// the Writer's lane over, the Writer goes on in a lane of its own.
func Yield(ctx context.Context, r *Repo, q YieldRequest) (Meta, Lane, error) {
	defer r.Working()()
	for range changeTries {
		ours, before, err := ReadMeta(r, q.Session)
		if err != nil {
			return Meta{}, Lane{}, err
		}
		theirs, err := MetaAt(r, r.Format(), q.Theirs)
		if err == nil && theirs.Session != q.Session {
			err = fmt.Errorf("%w: it is that of session %.140q", ErrNotMeta, theirs.Session)
		}
		if err != nil {
			return Meta{}, Lane{}, fmt.Errorf("read session %s of the session remote: %w", q.Session, err)
		}
		now := time.Now().UTC()
		was := theirs.clone()
		lane := theirs.yield(ours, q, now)
		if same(was, theirs) { // they know all: a version of our own would be news to them, and so on
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

// clone gives a copy that shares nothing which changes.
func (m Meta) clone() Meta {
	m.Lanes, m.Transitions = slices.Clone(m.Lanes), slices.Clone(m.Transitions)
	return m
}

// yield makes theirs what both know. What became of the session here since they parted is told again behind what became of
// it there, each with its own time.
func (m *Meta) yield(ours Meta, q YieldRequest, now time.Time) Lane {
	common := 0
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
		m.Lanes = append(m.Lanes, lane)
		m.Transitions = append(m.Transitions, Transition{State: Active, Time: now, Actor: clip(q.Actor),
			Reason: clip("lane " + q.Lane + " is used by " + l.Writer.Host + ", continuing in " + lane.Name)})
	}
	if lane.Left == nil {
		m.State = Active
	}
	return lane
}

// laneName makes a name of a lane's, a machine's, and something by chance.
func laneName(lane, host, chance string) string {
	host = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' {
			return r
		}
		return '-'
	}, host)
	lane, _, _ = strings.Cut(lane, "-") // one that was yielded already
	return lane + "-" + host[:min(len(host), 40)] + "-" + chance
}

// SetPin keeps a checkpoint by a name, and moves the pin of that name if there is one.
func SetPin(ctx context.Context, r *Repo, session, name string, p Point) error {
	if err := ValidPin(name); err != nil {
		return err
	}
	if err := r.Update(ctx, []RefChange{{Name: PinPrefix(session) + name, New: p.Commit, Force: true}}); err != nil {
		return fmt.Errorf("pin %s: %w", name, err)
	}
	return nil
}

// ErrNoPin reports that there is no pin of that name.
var ErrNoPin = errors.New("no such pin")

// RemovePin removes a pin. The checkpoint stays until GC drops it.
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
