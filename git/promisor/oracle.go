package promisor

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
)

const (
	// predictTime is the maximum duration of a prediction. After this time, the blobs that were found so far are
	// fetched. In a repository in which a prediction takes this long, the git command itself takes even longer.
	predictTime = 10 * time.Second
	// maxPredicted is the maximum number of blobs that are added to a request. The largest repositories have about twice
	// as many files.
	maxPredicted = 100_000
	// maxAskers is the number of processes whose requests are counted, and askerTime is the time after which a process may
	// be forgotten.
	maxAskers = 1000
	askerTime = time.Hour
	// patientRounds is the number of requests that a command may send before the prediction of its plan is abandoned as
	// useless.
	patientRounds = 3
)

// oracle predicts the objects that git commands will request.
type oracle struct {
	provider Provider
	log      *zap.Logger
	// git runs git commands.
	git   *guardedGit
	own   *odb.Store // packed objects of the git directory itself, such as new commits; no remote has these objects
	loose *odb.Loose // loose objects of the git directory itself

	mu       sync.Mutex
	askers   map[string]asker // processes that have sent requests, by Command.Process
	foreseen string           // Command.Process of the last process for which foresees returned true
}

// asker is a process that has sent requests.
type asker struct {
	rounds int // number of requests so far
	last   time.Time
}

// newOracle returns an oracle for a git directory. It opens the objects that were created in that directory.
func newOracle(gitDir string, p Provider, log *zap.Logger) (*oracle, error) {
	objects := filepath.Join(gitDir, "objects")
	own, err := odb.Open(objects, p.Format())
	if err != nil {
		return nil, err
	}
	return &oracle{provider: p, log: log, git: &guardedGit{gitDir: gitDir, objects: p.Objects()}, own: own,
		loose: odb.NewLoose(objects, p.Format()), askers: map[string]asker{}}, nil
}

// close closes the objects that newOracle has opened.
func (o *oracle) close() error { return o.own.Close() }

// round returns the number of earlier requests of a process, and counts the present request.
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

// lacking returns the elements of wants that the git directory does not contain. git may request objects that the
// directory contains, because a git process lists its loose objects once, and treats an object that a child process
// writes later as missing (git stash has several child processes). Such an object must not be requested from a remote,
// because no remote has it.
func (o *oracle) lacking(wants []object.ID) []object.ID {
	if err := o.own.Refresh(); err != nil {
		o.log.Warn("list objects that git has", zap.Error(err))
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

// predict returns the missing blobs that git will probably need, in addition to wants.
func (o *oracle) predict(ctx context.Context, h Hint, wants []object.ID) []object.ID {
	if len(h.Commands) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, predictTime)
	defer cancel()
	if err := errors.Join(o.git.update(ctx), o.own.Refresh(), o.provider.Refresh()); err != nil {
		o.log.Warn("predict objects that git wants", zap.Error(err))
		return nil
	}
	q := o.question(ctx, maxPredicted)
	q.wants = wants
	if len(wants) > 0 {
		q.round = o.round(h.Commands[0].Process)
	}
	err := q.predict(h)
	if err != nil && !errors.Is(err, errEnough) {
		// The error does not justify a warning, because the arguments of a command may name an object that does not exist, or
		// the prediction may need an object that is missing.
		o.log.Debug("end prediction early", zap.Error(err))
	}
	return q.found
}

// question returns the state of a new prediction that finds at most limit blobs.
func (o *oracle) question(ctx context.Context, limit int) *question {
	return &question{
		oracle: o, limit: limit, seen: map[object.ID]bool{},
		repo: repository{ctx: ctx, git: o.git, format: o.provider.Format()},
	}
}

// question is the state of one prediction. Its methods select the blobs that a command will need, and add the missing
// blobs to the field found. A question is used by one goroutine, so it needs no lock.
type question struct {
	*oracle
	repo  repository
	wants []object.ID
	round int // number of earlier requests of the same process

	limit int                // maximum length of found
	seen  map[object.ID]bool // objects that the prediction has considered
	found []object.ID        // missing blobs to fetch, in the order in which they were found
}

// predict adds the objects that the nearest command with a plan will need. If the plan has found no objects after
// patientRounds requests of the command, predict adds the neighbours of the requested objects.
func (q *question) predict(h Hint) error {
	for i, c := range h.Commands {
		name, args := Subcommand(c.Args)
		if _, known := plans[name]; !known {
			name, args = q.repo.alias(name, args)
		}
		plan, known := plans[name]
		if !known {
			continue
		}
		q.repo.command = c
		if plan == nil && i+1 < len(h.Commands) {
			// Continue with the next command of the hint: it may have started this command, and may have a plan.
			continue
		}
		var err error
		// Otherwise the request already contains all objects that the command needs.
		if plan != nil && (q.round == 0 || len(q.wants) < manyWants) {
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

// allow sets the limit of blobs in the prediction: to the parameter first at the first request of a process, and to
// four times the previous limit at each further request.
func (q *question) allow(first int) {
	q.limit = maxPredicted
	if n := first << (2 * min(q.round, 10)); n < maxPredicted {
		q.limit = n
	}
}

// add adds the blob s to the prediction if the blob is missing. It returns errEnough when the limit is reached.
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

// isLocal reports whether git finds the object without a request.
func (q *question) isLocal(id object.ID) bool {
	if len(q.provider.Missing([]object.ID{id})) == 0 || q.own.Has(id) {
		return true
	}
	_, _, err := q.loose.Size(id)
	return err == nil
}

// addSides adds the versions of the file before and after the change c.
func (q *question) addSides(c change) error {
	for _, s := range c.sides() {
		if err := q.add(s); err != nil {
			return err
		}
	}
	return nil
}
