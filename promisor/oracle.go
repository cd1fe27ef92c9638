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
	// predictTime bounds a prediction: afterwards the blobs found so far are used. Git itself takes
	// longer where this is reached.
	predictTime = 10 * time.Second
	// maxPredicted bounds the blobs that are added to a question: the largest repositories have about
	// twice as many files.
	maxPredicted = 100_000
	// maxAskers is how many processes are remembered, and askerTime for how long.
	maxAskers = 1000
	askerTime = time.Hour
	// patientRounds is how many questions a command may send whose prediction did not help.
	patientRounds = 3
)

// oracle predicts the objects that git commands will want.
type oracle struct {
	provider   Provider
	log        *zap.Logger
	quarantine *quarantineDir
	own        *odb.Store // objects of the git directory itself: commits created there, which no remote has
	loose      *odb.Loose // the same objects before they are packed

	mu       sync.Mutex
	askers   map[string]asker // processes that have sent questions, by Command.Process
	foreseen string           // process for which Foresee was called last
}

// asker is a process that has sent questions before.
type asker struct {
	rounds int // number of questions so far
	last   time.Time
}

// newOracle returns an oracle for a git directory. It opens the objects that were created there.
func newOracle(gitDir string, p Provider, log *zap.Logger) (*oracle, error) {
	objects := filepath.Join(gitDir, "objects")
	own, err := odb.Open(objects, p.Format())
	if err != nil {
		return nil, err
	}
	return &oracle{provider: p, log: log, quarantine: newQuarantineDir(gitDir, p.Objects(), p.Format()), own: own,
		loose: odb.NewLoose(objects, p.Format()), askers: map[string]asker{}}, nil
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

// lacking returns the wants without those that the git directory has itself. A git process lists
// its loose objects once, and takes objects that its child processes write later (stash has
// several) for missing; no remote has those.
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

// predict returns the blobs that git will want after these, as far as they are missing.
func (o *oracle) predict(ctx context.Context, h Hint, wants []object.ID) []object.ID {
	if len(h.Commands) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, predictTime)
	defer cancel()
	if err := errors.Join(o.quarantine.update(ctx), o.own.Refresh(), o.provider.Refresh()); err != nil {
		o.log.Warn("predict what git wants", zap.Error(err))
		return nil
	}
	q := &question{oracle: o, ctx: ctx, wants: wants, seen: map[object.ID]bool{}, limit: maxPredicted}
	if len(wants) > 0 {
		q.round = o.round(h.Commands[0].Process)
	}
	err := q.predict(h)
	if err != nil && !errors.Is(err, errEnough) {
		// Not worth a warning: a command may name something that does not exist, or meet a missing
		// object.
		o.log.Debug("prediction ended early", zap.Error(err))
	}
	return q.found
}

// question is the state of one prediction.
type question struct {
	*oracle
	ctx   context.Context
	wants []object.ID
	round int // number of earlier questions of the same process

	command Command
	limit   int                // largest length of found
	seen    map[object.ID]bool // objects that the prediction has looked at
	found   []object.ID        // missing blobs to fetch, in the order in which they were found
}

// predict adds the objects that the nearest command with a plan will want. If plans did not help in
// patientRounds questions, it adds the neighbours of the wanted objects.
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
			continue // such a command may be part of another that continues afterwards
		}
		var err error
		if plan != nil && (q.round == 0 || len(q.wants) < manyWants) { // otherwise the command requests everything at once
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

// allow sets how many blobs may be added: four times as many with each question, beginning with
// first.
func (q *question) allow(first int) {
	q.limit = maxPredicted
	if n := first << (2 * min(q.round, 10)); n < maxPredicted {
		q.limit = n
	}
}

// add adds a blob to the prediction. It returns errEnough if there is no room for more.
func (q *question) add(s side) error {
	if !s.isBlob() || q.seen[s.id] {
		return nil
	}
	q.seen[s.id] = true
	if q.isLocal(s.id) {
		return nil
	}
	q.found = append(q.found, s.id)
	if len(q.found) >= q.limit {
		return errEnough
	}
	return nil
}

// isLocal reports whether git finds an object without a question.
func (q *question) isLocal(id object.ID) bool {
	if len(q.provider.Missing([]object.ID{id})) == 0 || q.own.Has(id) {
		return true
	}
	_, _, err := q.loose.Size(id)
	return err == nil
}

// addSides adds all versions that a change names.
func (q *question) addSides(c change) error {
	for _, s := range c.sides() {
		if err := q.add(s); err != nil {
			return err
		}
	}
	return nil
}

// rev returns the commit, or other object, that a name means.
func (q *question) rev(name string) (string, error) {
	if id := q.quarantine.rev(q.ctx, name); id != "" {
		return id, nil
	}
	return "", fmt.Errorf("find %q: no such revision", name)
}
