package promisor

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/odb"
)

const (
	// predictTime bounds a prediction: what has been found by then has to do. Git itself takes longer where it is reached.
	predictTime = 10 * time.Second
	// mostAlong bounds what is brought besides, in objects: the largest repositories have about twice as many files.
	mostAlong = 100_000
	// maxAskers is how many processes are remembered, and askerTime for how long.
	maxAskers = 1000
	askerTime = time.Hour
	// patientRounds is how many questions in vain a command may ask of which it seemed to be known what it wants.
	patientRounds = 3
)

// oracle predicts what git commands are going to want.
type oracle struct {
	provider Provider
	log      *zap.Logger
	lens     *lens
	own      *odb.Store // what lies in the git directory itself: commits made here, which no remote has
	loose    *odb.Loose // the same, as long as it is not packed

	mu       sync.Mutex
	askers   map[string]asker // by process
	foreseen string           // the process for which that was done last
}

// asker is a process that has asked before.
type asker struct {
	rounds int // questions so far
	last   time.Time
}

func newOracle(gitDir string, p Provider, log *zap.Logger) (*oracle, error) {
	objects := filepath.Join(gitDir, "objects")
	own, err := odb.Open(objects, p.Format())
	if err != nil {
		return nil, err
	}
	return &oracle{provider: p, log: log, lens: newLens(gitDir, p.Objects(), p.Format()), own: own, loose: odb.NewLoose(objects, p.Format()), askers: map[string]asker{}}, nil
}

func (o *oracle) close() error { return o.own.Close() }

// round counts the questions of a process, from 0.
func (o *oracle) round(process string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	if len(o.askers) >= maxAskers {
		for p, a := range o.askers {
			if now.Sub(a.last) > askerTime || len(o.askers) >= 2*maxAskers {
				delete(o.askers, p)
			}
		}
	}
	a := o.askers[process]
	o.askers[process] = asker{a.rounds + 1, now}
	return a.rounds
}

// lacking leaves out what the git directory has itself. A git process lists its loose objects once, and takes for missing
// what a child of its own, as stash has several, makes after that; no remote has those.
func (o *oracle) lacking(wants []object.ID) []object.ID {
	if err := o.own.Refresh(); err != nil {
		o.log.Warn("look for what git has", zap.Error(err))
	}
	return slices.DeleteFunc(slices.Clone(wants), func(id object.ID) bool {
		if len(o.provider.Missing([]object.ID{id})) == 0 {
			return false
		}
		if o.own.Has(id) {
			return true
		}
		_, _, err := o.loose.Size(id)
		return err == nil
	})
}

// predict gives the blobs that git is going to want after these, as far as they are not here.
func (o *oracle) predict(ctx context.Context, h Hint, wants []object.ID) []object.ID {
	if len(h.Commands) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, predictTime)
	defer cancel()
	if err := errors.Join(o.lens.focus(ctx), o.own.Refresh(), o.provider.Refresh()); err != nil {
		o.log.Warn("predict what git wants", zap.Error(err))
		return nil
	}
	q := &question{oracle: o, ctx: ctx, wants: wants, seen: map[object.ID]bool{}, limit: mostAlong}
	if len(wants) > 0 {
		q.round = o.round(h.Commands[0].Process)
	}
	err := q.predict(h)
	if err != nil && !errors.Is(err, errEnough) {
		// Not worth a warning: a command may name what is not there, or meet what is missing.
		o.log.Debug("prediction ended early", zap.Error(err))
	}
	return q.found
}

// question is a question while what will follow it is predicted.
type question struct {
	*oracle
	ctx   context.Context
	wants []object.ID
	round int // how often the same process has asked before

	command Command
	limit   int // of found
	seen    map[object.ID]bool
	found   []object.ID
}

// predict asks the nearest command of which is known what it does.
func (q *question) predict(h Hint) error {
	for i, c := range h.Commands {
		name, args := Subcommand(c.Args)
		if _, known := plans[name]; !known {
			name, args = q.alias(name, args)
		}
		plan, known := plans[name]
		if !known {
			continue
		}
		q.command = c
		if plan == nil && i+1 < len(h.Commands) {
			continue // one that asks for all it wants at once may be a part of one that goes on
		}
		var err error
		if plan != nil && (q.round == 0 || len(q.wants) < manyWants) { // otherwise it has begun to ask for all at once
			err = plan(q, args)
		}
		if len(q.found) > 0 || q.round < patientRounds || len(q.wants) >= manyWants {
			return err
		}
		q.round -= patientRounds
		break
	}
	if len(q.wants) == 0 {
		return nil
	}
	return q.neighbours()
}

// allow sets how many objects may come along: four times as many with each question, beginning with first.
func (q *question) allow(first int) {
	q.limit = mostAlong
	if n := first << (2 * min(q.round, 10)); n < mostAlong {
		q.limit = n
	}
}

// add takes a blob into the prediction; errEnough says that there is no room for more.
func (q *question) add(s side) error {
	if !s.isBlob() || q.seen[s.id] {
		return nil
	}
	q.seen[s.id] = true
	if q.here(s.id) {
		return nil
	}
	q.found = append(q.found, s.id)
	if len(q.found) >= q.limit {
		return errEnough
	}
	return nil
}

// here says whether git finds an object without asking.
func (q *question) here(id object.ID) bool {
	if len(q.provider.Missing([]object.ID{id})) == 0 || q.own.Has(id) {
		return true
	}
	_, _, err := q.loose.Size(id)
	return err == nil
}

// addSides takes in all versions that a change names.
func (q *question) addSides(c change) error {
	for _, s := range c.sides() {
		if err := q.add(s); err != nil {
			return err
		}
	}
	return nil
}

// rev gives the commit, or other object, that a name means.
func (q *question) rev(name string) (string, error) {
	if id := q.lens.rev(q.ctx, name); id != "" {
		return id, nil
	}
	return "", fmt.Errorf("find %q: no such revision", name)
}
