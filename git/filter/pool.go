package filter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/artifactfs/artifactfs/internal/signal"
)

// maxTries is the maximum number of processes that a file is sent to, if each of them dies while it filters the file.
const maxTries = 3

// job is one file in a pool. Until done is closed, only the worker that has taken the job uses its fields, except the
// field since. After done was closed, the fields do not change.
type job struct {
	file  File
	since time.Time     // time at which the job was queued; protected by pool.mu
	tries int           // number of processes that died while they filtered the file
	err   error         // result of the job; valid after done is closed
	done  chan struct{} // closed when err is the result
}

// finish sets the job's result and wakes the caller that waits for it.
func (j *job) finish(err error) {
	j.err = err
	close(j.done)
}

// pool manages the processes of one command. Usually there is only one process; another one is started when a file has
// waited for the duration patience. Each process has a worker, which is the goroutine that communicates with the
// process.
type pool struct {
	programs *Programs
	command  string
	wake     chan struct{} // signals that a job was queued

	mu       sync.Mutex
	queue    []*job    // jobs that no worker has taken, oldest first
	workers  int       // number of running workers
	idle     int       // number of workers that wait for a job
	busy     []*job    // jobs that workers have taken
	failure  error     // error of the last start of a process; nil if the start succeeded
	failedAt time.Time // time of the last attempt to start a process
}

// push queues a job and makes sure that a worker takes it. It starts the first worker immediately. It starts another
// worker if the job still waits after the duration patience and no worker is idle.
func (o *pool) push(g *generation, j *job) {
	o.mu.Lock()
	defer o.mu.Unlock()
	j.since = time.Now()
	o.queue = append(o.queue, j)
	switch {
	case o.workers == 0:
		o.hire(g)
	case o.idle == 0:
		time.AfterFunc(patience, func() { o.relieve(g) })
	}
	signal.Send(o.wake)
}

// hire starts a worker. The caller holds o.mu.
func (o *pool) hire(g *generation) {
	o.workers++
	g.wg.Add(1)
	go func() {
		defer g.wg.Done()
		w := worker{pool: o, ctx: g.ctx}
		w.work()
	}()
}

// relieve starts another worker if the oldest job has waited for the duration patience, all workers are busy, and there
// are fewer than maxProcesses workers.
func (o *pool) relieve(g *generation) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.queue) > 0 && o.idle == 0 && o.workers < maxProcesses && g.ctx.Err() == nil &&
		time.Since(o.queue[0].since) >= patience {
		o.hire(g)
	}
}

// unwanted reports whether no caller waits for any file of the pool.
func (o *pool) unwanted() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	wanted := func(j *job) bool { return j.file.wanted() }
	return !slices.ContainsFunc(o.queue, wanted) && !slices.ContainsFunc(o.busy, wanted)
}

// worker takes jobs from its pool and filters them through one process at a time.
type worker struct {
	pool *pool
	ctx  context.Context // ends when the programs are stopped
	c    *process        // the process that the worker uses; nil if no process is running
}

// work takes and filters jobs until the method take returns nil. Then it stops the process.
func (w *worker) work() {
	defer func() {
		if w.c != nil {
			w.c.end(false)
		}
	}()
	for {
		jobs := w.take()
		if jobs == nil {
			return
		}
		for _, j := range w.round(jobs) {
			j.tries++
			w.pool.retry(j)
		}
		w.pool.release(jobs)
		if w.c != nil {
			w.c.run.rest()
		}
	}
}

// take waits for jobs and moves at most maxBatch of them from the queue to the list of busy jobs. It returns nil if the
// queue was empty for idleTime or if the programs are being stopped; the worker must then end. The last worker that
// ends finishes the remaining jobs with ErrStopped.
func (w *worker) take() []*job {
	o := w.pool
	timer := time.NewTimer(idleTime)
	defer timer.Stop()
	expired := false
	o.mu.Lock()
	defer o.mu.Unlock()
	for {
		if w.ctx.Err() != nil {
			o.workers--
			if o.workers == 0 {
				for _, j := range o.queue {
					j.finish(ErrStopped)
				}
				o.queue = nil
			}
			return nil
		}
		if n := min(len(o.queue), maxBatch); n > 0 {
			jobs := slices.Clone(o.queue[:n])
			o.queue = slices.Delete(o.queue, 0, n)
			o.busy = append(o.busy, jobs...)
			return jobs
		}
		if expired {
			o.workers--
			return nil
		}
		o.idle++
		o.mu.Unlock()
		select {
		case <-o.wake:
		case <-w.ctx.Done():
		case <-timer.C:
			expired = true
		}
		o.mu.Lock()
		o.idle--
	}
}

// retry puts a job back at the front of the queue, because the process that filtered it has died.
func (o *pool) retry(j *job) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.queue = slices.Insert(o.queue, 0, j)
}

// release removes jobs from the list of busy jobs.
func (o *pool) release(jobs []*job) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.busy = slices.DeleteFunc(o.busy, func(j *job) bool { return slices.Contains(jobs, j) })
}

// connect starts a process unless the worker already has one. If a start has failed less than startPause ago, connect
// makes no new attempt and returns the error of that start, so that a broken command is not started for every file.
func (w *worker) connect() error {
	if w.c != nil {
		return nil
	}
	o := w.pool
	o.mu.Lock()
	err, at := o.failure, o.failedAt
	o.mu.Unlock()
	if err != nil && time.Since(at) < startPause {
		return err
	}
	if err = o.programs.ready(w.ctx); err == nil {
		w.c, err = o.programs.greet(w.ctx, o.command)
	}
	if w.ctx.Err() != nil {
		return ErrStopped
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.failure, o.failedAt = err, time.Now()
	return err
}

// round filters jobs. If the process can delay files, round sends all jobs to it at the same time. It finishes each
// job, unless another process must try the job; such jobs are in the result again.
//
// A single job is never delayed, because the program has no other file to filter during the delay. Two jobs with the
// same path cannot be delayed at the same time, because the protocol identifies a delayed file by its path; the second
// job is filtered after the first.
func (w *worker) round(jobs []*job) (again []*job) {
	if w.c != nil && w.c.delay && w.c.listed && len(jobs) > 1 {
		// start a new process, because some programs, such as git-lfs, accept no delayed files after they have listed some
		w.c.end(false)
		w.c = nil
	}
	waiting := map[string]*job{}
	var later []*job // jobs with the same path as a delayed job
	for _, j := range jobs {
		if waiting[j.file.Path] != nil {
			later = append(later, j)
			continue
		}
		if !j.file.wanted() && !j.file.Ahead {
			w.finish(j, ErrStopped)
			continue
		}
		if err := w.connect(); err != nil {
			w.finish(j, err)
			continue
		}
		what, err := w.c.filter(&j.file, len(jobs) > 1 && w.c.delay && !w.c.listed)
		switch what {
		case delayed:
			waiting[j.file.Path] = j
		case broken:
			again = append(again, w.bury(err, append(drain(waiting), j))...)
		default:
			w.finish(j, err)
		}
	}
	for len(waiting) > 0 {
		if err := w.collect(waiting); err != nil {
			again = append(again, w.bury(err, drain(waiting))...)
		}
	}
	for _, j := range later {
		again = append(again, w.round([]*job{j})...)
	}
	return again
}

// collect waits until delayed files are available, reads these files and finishes their jobs. The map waiting contains
// the delayed jobs, by path. After an error the process cannot be used any more.
func (w *worker) collect(waiting map[string]*job) error {
	paths, err := w.c.available()
	if err != nil {
		return err
	}
	if len(paths) == 0 {
		for _, j := range drain(waiting) {
			w.finish(j, fmt.Errorf("%w: program did not return a delayed file", ErrUnfiltered))
		}
	}
	for _, path := range paths {
		j, ok := waiting[path]
		if !ok {
			return fmt.Errorf("%w: program returned %.100q, which was not delayed", errProtocol, path)
		}
		what, err := w.c.collect(&j.file)
		if what == broken {
			return err
		}
		delete(waiting, path)
		w.finish(j, err)
	}
	return nil
}

// drain empties the map and returns its jobs.
func drain(waiting map[string]*job) []*job {
	var jobs []*job
	for path, j := range waiting {
		jobs = append(jobs, j)
		delete(waiting, path)
	}
	return jobs
}

// finish sets a job's result. If err is not nil, the result also names the command.
func (w *worker) finish(j *job, err error) {
	if err != nil && !errors.Is(err, ErrStopped) {
		err = fmt.Errorf("run filter %q: %w", w.pool.command, err)
	}
	j.finish(err)
}

// bury kills the process, which has failed with the error err while it was filtering the list jobs. If the process had
// answered for other files before, another process may try these jobs: bury returns the jobs that were sent to fewer
// than maxTries processes in the result again. It finishes all other jobs with an error.
func (w *worker) bury(err error, jobs []*job) (again []*job) {
	late, served := w.c.run.late.Load(), w.c.served
	w.c.end(true)
	w.c = nil
	for _, j := range jobs {
		switch {
		case w.ctx.Err() != nil:
			w.finish(j, ErrStopped)
		case late:
			w.finish(j, ErrDeadline)
		case j.tries < maxTries-1 && served > 0:
			again = append(again, j)
		default:
			w.finish(j, fmt.Errorf("%w: %w", ErrUnfiltered, err))
		}
	}
	return again
}
