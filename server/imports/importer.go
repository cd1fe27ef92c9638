package imports

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/internal/certfile"
	"github.com/artifactfs/artifactfs/internal/metrics"
	"github.com/artifactfs/artifactfs/internal/signal"
	"github.com/artifactfs/artifactfs/server/meter"
	"github.com/artifactfs/artifactfs/server/places"
	"github.com/artifactfs/artifactfs/server/quota"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/server/replica"
)

const (
	defaultBytes    = 20 << 30
	defaultTime     = 6 * time.Hour
	defaultParallel = 6
	maxAttempts     = 5
	maxGit          = 3   // maximum number of attempts if git fails
	openImports     = 200 // maximum number of unfinished imports that one poll examines
)

// Options configures an Importer. Records, Replicas and Scratch are required.
type Options struct {
	Account  string
	Records  *records.DB
	Replicas *replica.Set
	Scratch  string // directory for fetches, whose contents are removed at the start; no other process may use it

	Secrets string // directory with credentials in files NAMESPACE/NAME; "": there are none
	// file with certificates that are trusted instead of those of the system; "": those of the system
	CAFile       string
	AllowPrivate bool  // whether to connect to addresses that are not public, such as those in a company's network
	AllowHTTP    bool  // whether to accept http for the loopback address, for tests
	Compat       bool  // whether the default branch is always main, as in the reference service
	MaxBytes     int64 // maximum number of bytes that one import may receive; 0: 20 GiB
	MaxTime      time.Duration
	// maximum number of imports that run in this process at the same time; 0: 6. A namespace may have a third of them.
	Parallel int
	Memory   *places.Memory // memory of all git processes together; nil: no limit
	Quotas   *quota.Keeper  // checks quotas of namespaces; nil: there are none

	Meter *meter.Meter
	Log   *zap.Logger
}

// pace contains the intervals of the background work.
type pace struct {
	poll  time.Duration // interval at which imports are searched for that other nodes have stopped running
	lease time.Duration // time after which another node can continue the import of a node that died
	save  time.Duration // interval at which the progress is recorded
	retry time.Duration // time before the second attempt; doubled for each further attempt
	slow  time.Duration // maximum time for which the other server may be slower than slowRate
	count time.Duration // maximum time of that in which it reports that it counts or compresses objects
}

// Importer runs imports.
type Importer struct {
	o     Options
	pace  pace
	id    string         // name of this process as the holder of leases
	roots *x509.CertPool // nil: the certificates of the system
	ctx   context.Context
	stop  context.CancelFunc
	wake  chan struct{}
	work  sync.WaitGroup

	places *places.Places

	mu      sync.Mutex // protects running
	running map[string]bool
}

// New returns an Importer that works until Close.
func New(o Options) (*Importer, error) {
	return start(o, pace{poll: 3 * time.Second, lease: 30 * time.Second, save: time.Second, retry: 5 * time.Second,
		slow: 2 * time.Minute, count: 20 * time.Minute})
}

func start(o Options, p pace) (*Importer, error) {
	if o.MaxBytes <= 0 {
		o.MaxBytes = defaultBytes
	}
	if o.MaxTime <= 0 {
		o.MaxTime = defaultTime
	}
	if o.Parallel <= 0 {
		o.Parallel = defaultParallel
	}
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	roots, err := certfile.Roots(o.CAFile)
	if err == nil {
		err = empty(o.Scratch)
	}
	if err != nil {
		return nil, fmt.Errorf("start imports: %w", err)
	}
	i := &Importer{o: o, pace: p, id: records.NewID(), roots: roots, wake: make(chan struct{}, 1),
		running: map[string]bool{}}
	i.places = places.New(places.Options{Most: o.Parallel,
		MostOf: map[places.Kind]int{places.OfNamespace: max(o.Parallel/3, 1)},
		Memory: o.Memory, Class: places.Background})
	i.ctx, i.stop = context.WithCancel(context.Background())
	i.work.Go(i.loop)
	return i, nil
}

// empty creates an empty directory. It removes the contents of an existing one.
func empty(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	old, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range old {
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// Close stops the imports of this process. Other nodes, or the next process, begin them again.
func (i *Importer) Close() error {
	i.stop()
	i.work.Wait()
	return nil
}

// Check returns the properties of the repository on the other server.
func (i *Importer) Check(ctx context.Context, r Request) (Remote, error) {
	f, _, err := i.find(ctx, r)
	if err != nil {
		return Remote{}, fmt.Errorf("import repository: %w", err)
	}
	if i.o.Compat {
		f.DefaultBranch = "main"
	}
	return f.Remote, nil
}

// find requests the refs of the other server, with the credentials that the request names. It returns the credentials
// for the URL of the answer, which may follow redirections.
func (i *Importer) find(ctx context.Context, r Request) (found, credentials, error) {
	u, err := i.valid(r)
	if err != nil {
		return found{}, credentials{}, err
	}
	s, err := i.secret(r.Namespace, r.Secret, u)
	if err != nil {
		return found{}, credentials{}, err
	}
	f, err := i.look(ctx, u, s, r.Branch)
	if err != nil {
		return found{}, credentials{}, err
	}
	c, _ := s.pick(f.url) // there are none if the server has redirected to a URL for which the secret has no line
	return f, c, nil
}

// Start begins an import into a repository, or imports a repository again. An empty request repeats the last one. Start
// returns ErrBusy while the repository is being imported, and records.ErrNotFound if the request is empty and the
// repository was never imported. If cause is zero, no audit entry is written.
func (i *Importer) Start(ctx context.Context, repo records.Repo, r Request, cause records.Cause) error {
	m := records.Import{RepoID: repo.ID, URL: r.URL, Branch: r.Branch, Depth: r.Depth, Secret: r.Secret,
		State: string(Queued)}
	if r == (Request{}) {
		last, err := i.o.Records.Imports.Get(ctx, repo.ID)
		if err != nil {
			return fmt.Errorf("repeat import: %w", err)
		}
		m.URL, m.Branch, m.Depth, m.Secret = last.URL, last.Branch, last.Depth, last.Secret
	} else if _, err := i.valid(r); err != nil {
		return fmt.Errorf("import repository: %w", err)
	}
	err := i.o.Records.Imports.Begin(ctx, m, cause)
	if errors.Is(err, records.ErrExists) {
		return fmt.Errorf("import repository: %w", ErrBusy)
	}
	if err != nil {
		return fmt.Errorf("import repository: %w", err)
	}
	signal.Send(i.wake)
	return nil
}

// Status returns the progress of the last import of a repository, and records.ErrNotFound if it was never imported.
func (i *Importer) Status(ctx context.Context, repo records.Repo) (Status, error) {
	m, err := i.o.Records.Imports.Get(ctx, repo.ID)
	if err != nil {
		return Status{}, err
	}
	return Status{
		State: State(m.State), Phase: m.Phase, Done: m.Done, Total: m.Total, Bytes: m.Bytes, Error: m.Error,
		Started: m.Started, Finished: m.Finished,
	}, nil
}

// Metrics writes the metrics of an Importer.
func (i *Importer) Metrics(w *metrics.Writer) {
	w.Family("artifactfs_server_imports_running", metrics.Gauge, "Imports that run in this process.")
	w.Sample(float64(i.Running()))
}

// Running returns the number of imports that run in this process.
func (i *Importer) Running() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return len(i.running)
}

// abandoned is the age of a repository without an import after which the process that created it counts as dead.
const abandoned = 5 * time.Minute

func (i *Importer) loop() {
	tick := time.NewTicker(i.pace.poll)
	defer tick.Stop()
	failing := false
	var checked time.Time
	for {
		err := i.begin()
		if err == nil && time.Since(checked) > abandoned {
			checked = time.Now()
			err = i.o.Records.Imports.Abandoned(i.ctx, checked.Add(-abandoned), string(Failed),
				"the server stopped before the import began")
		}
		if err != nil && !failing && i.ctx.Err() == nil {
			i.o.Log.Warn("could not look for imports", zap.Error(err))
		}
		failing = err != nil
		select {
		case <-i.wake:
		case <-tick.C:
		case <-i.ctx.Done():
			return
		}
	}
}

// begin starts imports that no node runs, up to the limit of this process.
func (i *Importer) begin() error {
	open, err := i.o.Records.Imports.Open(i.ctx, openImports)
	if err != nil {
		return err
	}
	for _, m := range open {
		if i.wait(m) > 0 || !i.reserve(m.RepoID) {
			continue
		}
		// Do not wait if no place is free at once, because a later call tries again.
		place, err := i.places.Enter(i.ctx, places.Large, places.Of(m.Namespace, "", "")...)
		if err != nil {
			i.free(m.RepoID)
			continue
		}
		got, err := i.acquire(i.ctx, m.RepoID)
		if err != nil || !got {
			i.free(m.RepoID)
			place.Release()
			if err != nil {
				return err
			}
			continue
		}
		i.work.Go(func() {
			i.hold(place.Limit(i.ctx), m.RepoID)
			i.free(m.RepoID)
			place.Release()
			signal.Send(i.wake) // this process may now run another import
		})
	}
	return nil
}

// wait returns the time that remains until the next attempt of an import that has failed.
func (i *Importer) wait(m records.Import) time.Duration {
	if m.Attempts == 0 || m.State != string(Queued) {
		return 0
	}
	return time.Until(m.Updated.Add(i.pace.retry << min(m.Attempts-1, 10)))
}

func leaseName(repoID string) string { return "import/" + repoID }

func (i *Importer) reserve(repoID string) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.running[repoID] {
		return false
	}
	i.running[repoID] = true
	return true
}

func (i *Importer) free(repoID string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.running, repoID)
}

// acquire takes or renews the lease of an import. It waits for the database for at most a third of the time of a lease.
func (i *Importer) acquire(ctx context.Context, repoID string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, i.pace.lease/3)
	defer cancel()
	return i.o.Records.Leases.Acquire(ctx, leaseName(repoID), i.id, i.pace.lease)
}

var errLease = errors.New("lease of the import was lost")

// hold runs an import as long as this process has its lease.
func (i *Importer) hold(ctx context.Context, repoID string) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var renewal sync.WaitGroup
	renewal.Go(func() {
		tick := time.NewTicker(i.pace.lease / 3)
		defer tick.Stop()
		renewed := time.Now()
		for {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			asked := time.Now()
			got, err := i.acquire(ctx, repoID)
			switch {
			case got:
				renewed = asked
			case err == nil || time.Since(renewed) > i.pace.lease:
				cancel(errLease)
				return
			}
		}
	})
	i.run(ctx, repoID)
	cancel(nil)
	renewal.Wait()
	release, done := context.WithTimeout(context.WithoutCancel(ctx), i.pace.lease/3)
	defer done()
	if err := i.o.Records.Leases.Release(release, leaseName(repoID), i.id); err != nil {
		i.o.Log.Debug("could not release the lease of an import, which ends by itself", zap.Error(err))
	}
}
