package daemon

import (
	"context"
	"io"
	"maps"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/git/transport/via"
	"github.com/artifactfs/artifactfs/host/mount"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/internal/metrics"
	"github.com/artifactfs/artifactfs/internal/proc"
)

// metricsAge is the maximum age of the counts of fetched contents in the metrics. An older count is repeated, which
// walks the whole tree.
const metricsAge = 15 * time.Second

// WriteMetrics writes the metrics of the daemon and its mounts in the text format of Prometheus.
//
// Metrics of a mount have the label "mount", whose value is the directory of the mount. Metrics of a remote have the
// label "remote", whose value is the URL of the remote. URLs are written without credentials, as in the status.
// Counters start at zero when the process starts; counters of a mount start at zero when the mount is served.
func (d *Daemon) WriteMetrics(ctx context.Context, out io.Writer) error {
	w := metrics.NewWriter(out)
	d.writeProcess(w)
	d.writeOperations(w)
	mounts := d.scrape(ctx)
	writeMounts(w, mounts, d.host.Failures.List())
	writeRemotes(w, mounts)
	usage := d.blobs.Usage()
	// The function one writes a metric family that has a single sample without labels.
	one := func(name string, kind metrics.Kind, help string, v float64) {
		w.Family(name, kind, help)
		w.Sample(v)
	}
	one("artifactfs_cache_blobs", metrics.Gauge, "Contents in the cache on disk.", float64(usage.Blobs))
	one("artifactfs_cache_bytes", metrics.Gauge, "Bytes of the cache on disk.", float64(usage.Bytes))
	one("artifactfs_cache_quota_bytes", metrics.Gauge, "Bytes that the cache on disk may take.", float64(usage.Quota))
	one("artifactfs_cache_damaged_total", metrics.Counter, "Contents found damaged in the cache, and fetched again.",
		float64(usage.Damaged))
	var st unix.Statfs_t
	if err := unix.Statfs(d.host.State, &st); err == nil {
		one("artifactfs_state_free_bytes", metrics.Gauge, "Bytes free where the state directory is.",
			float64(st.Bavail)*float64(st.Bsize))
		one("artifactfs_state_size_bytes", metrics.Gauge, "Size of the file system where the state directory is.",
			float64(st.Blocks)*float64(st.Bsize))
		one("artifactfs_state_free_inodes", metrics.Gauge, "Inodes free where the state directory is.", float64(st.Ffree))
		one("artifactfs_state_inodes", metrics.Gauge,
			"Inodes of the file system where the state directory is; 0 if it has no limit.",
			float64(st.Files))
	}
	return w.Flush()
}

// writeProcess writes the metrics of this process that the client libraries of Prometheus define, under the same names.
func (d *Daemon) writeProcess(w *metrics.Writer) {
	// The function one writes a metric family that has a single sample without labels.
	one := func(name string, kind metrics.Kind, help string, v float64) {
		w.Family(name, kind, help)
		w.Sample(v)
	}
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err == nil {
		one("process_cpu_seconds_total", metrics.Counter, "User and system time.",
			float64(usage.Utime.Nano()+usage.Stime.Nano())/1e9)
	}
	if resident, ok := proc.Self.ResidentBytes(); ok {
		one("process_resident_memory_bytes", metrics.Gauge, "Memory that is resident.", float64(resident))
	}
	if fds, err := proc.Self.Descriptors(); err == nil {
		one("process_open_fds", metrics.Gauge, "Open file descriptors.", float64(len(fds)))
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err == nil {
		one("process_max_fds", metrics.Gauge, "Largest number of open file descriptors.", float64(limit.Cur))
	}
	if st, err := proc.Self.Status(); err == nil {
		one("artifactfs_anonymous_memory_bytes", metrics.Gauge, "Resident memory of the worker that belongs to no file.",
			float64(st.Anonymous))
		one("artifactfs_threads", metrics.Gauge, "Threads of the worker.", float64(st.Threads))
	}
	one("process_start_time_seconds", metrics.Gauge, "Start of the process, in seconds since the epoch.",
		float64(processStart.UnixMilli())/1e3)
	one("go_goroutines", metrics.Gauge, "Goroutines.", float64(runtime.NumGoroutine()))
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	one("go_memstats_heap_alloc_bytes", metrics.Gauge, "Bytes of the heap in use.", float64(mem.HeapAlloc))
	one("go_memstats_sys_bytes", metrics.Gauge, "Bytes obtained from the system.", float64(mem.Sys))
	one("go_gc_cycles_total", metrics.Counter, "Garbage collections.", float64(mem.NumGC))
}

// processStart is approximately the time at which the process started, because packages are initialized within its
// first milliseconds.
var processStart = time.Now()

// writeOperations writes histograms of the durations of FUSE requests in all mounts, by operation.
func (d *Daemon) writeOperations(w *metrics.Writer) {
	w.Family("artifactfs_operation_duration_seconds", metrics.Histograms,
		"Duration of the requests of the kernel, of all mounts.")
	d.host.Times.Each(func(op string, h *metrics.Histogram) {
		w.Histogram(h, metrics.Label{Name: "op", Value: strings.ToLower(op)})
	})
}

// scraped has the values of one mount that one scrape of the metrics returns.
type scraped struct {
	mount.Figures
	label metrics.Label // label with the directory of the mount
}

// scrape returns the values of all mounts for the metrics, sorted by directory.
func (d *Daemon) scrape(ctx context.Context) (all []scraped) {
	for _, m := range d.list() {
		f := m.Figures(ctx, time.Now().Add(-metricsAge))
		all = append(all, scraped{f, metrics.Label{Name: "mount", Value: m.Dir}})
	}
	return all
}

// writeMounts writes the metrics of single mounts, and the number of mounts in each state.
func writeMounts(w *metrics.Writer, mounts []scraped, failures []statedir.Failure) {
	w.Family("artifactfs_mounts", metrics.Gauge, "Mounts by state.")
	// A sample is written for every state, even if no mount is in that state, so that the time series has no gaps.
	for _, state := range []control.State{control.StatePreparing, control.StateMounted, control.StateDegraded,
		control.StateFailed} {
		n := 0
		for _, m := range mounts {
			if m.State == state {
				n++
			}
		}
		// Mounts that have failed are no longer among the mounts of the daemon.
		for _, f := range failures {
			if state == control.StateFailed && !slices.ContainsFunc(mounts, func(m scraped) bool { return m.Dir == f.Dir }) {
				n++
			}
		}
		w.Sample(float64(n), metrics.Label{Name: "state", Value: string(state)})
	}
	w.Family("artifactfs_mount_info", metrics.Gauge, "Remote, commit and session of each mount; always 1.")
	for _, m := range mounts {
		// The labels contain the information, and the value is always 1, as is usual for info metrics.
		w.Sample(1, m.label, metrics.Label{Name: "remote", Value: m.Remote}, metrics.Label{Name: "ref", Value: m.Ref},
			metrics.Label{Name: "commit", Value: m.Commit}, metrics.Label{Name: "session", Value: m.Session.Name})
	}
	// The function each writes a metric family with one sample for each mount.
	each := func(name string, kind metrics.Kind, help string, value func(m *scraped) float64) {
		w.Family(name, kind, help)
		for i := range mounts {
			w.Sample(value(&mounts[i]), mounts[i].label)
		}
	}
	each("artifactfs_mount_start_time_seconds", metrics.Gauge, "Start of the mount, in seconds since the epoch.",
		func(m *scraped) float64 { return float64(m.Since.Unix()) })
	each("artifactfs_mount_degraded", metrics.Gauge,
		"1 if the last request of the mount to its remote, or work in the background, failed.",
		func(m *scraped) float64 { return flag(m.State == control.StateDegraded) })
	each("artifactfs_mount_files", metrics.Gauge, "Files in the tree.",
		func(m *scraped) float64 { return float64(m.Tree.Files) })
	each("artifactfs_mount_blobs", metrics.Gauge, "Distinct contents that the tree names.",
		func(m *scraped) float64 { return float64(m.Blobs.Total) })
	each("artifactfs_mount_fetched_blobs", metrics.Gauge,
		"Distinct contents that the tree names and that are on this host.",
		func(m *scraped) float64 { return float64(m.Blobs.Fetched) })
	each("artifactfs_mount_fetched_bytes", metrics.Gauge, "Bytes of the contents of the tree that are on this host.",
		func(m *scraped) float64 { return float64(m.Blobs.Bytes) })
	each("artifactfs_mount_changed_paths", metrics.Gauge, "Paths that differ from the commit.",
		func(m *scraped) float64 { return float64(m.Overlay.Changed) })
	each("artifactfs_mount_changed_bytes", metrics.Gauge, "Bytes of changed contents.",
		func(m *scraped) float64 { return float64(m.Overlay.Bytes) })
	each("artifactfs_mount_operations_pending", metrics.Gauge, "Requests of the kernel that are not answered yet.",
		func(m *scraped) float64 { return float64(m.Operations.Pending) })
	each("artifactfs_mount_operations_fetched_total", metrics.Counter,
		"Requests of the kernel that needed something from the remote.",
		func(m *scraped) float64 { return float64(m.Operations.Fetched) })
	each("artifactfs_session_failing", metrics.Gauge, "1 if the last checkpoint or push of the session failed.",
		func(m *scraped) float64 { return flag(m.Session.Error != "") })
	each("artifactfs_session_diverged_refs", metrics.Gauge, "Refs that were changed here and by another session.",
		func(m *scraped) float64 { return float64(len(m.Session.DivergedRefs)) })
	each("artifactfs_session_pending_seconds", metrics.Gauge,
		"Time for which refs have not been on the session remote; 0 if all are.",
		func(m *scraped) float64 {
			if m.Session.PendingSince == nil {
				return 0
			}
			return max(time.Since(*m.Session.PendingSince).Seconds(), 0)
		})
	each("artifactfs_session_pending_refs", metrics.Gauge, "Refs that are not on the session remote yet.",
		func(m *scraped) float64 { return float64(m.Session.Pending) })
	each("artifactfs_session_checkpoints", metrics.Gauge, "Checkpoints of the session.",
		func(m *scraped) float64 { return float64(m.Session.Checkpoints) })
	each("artifactfs_session_checkpoints_made_total", metrics.Counter, "Checkpoints that this process has made.",
		func(m *scraped) float64 { return float64(m.Agent.Made) })
	each("artifactfs_session_checkpoint_seconds_total", metrics.Counter, "Time that making checkpoints took.",
		func(m *scraped) float64 { return m.Agent.Took.Seconds() })
	each("artifactfs_session_pause_max_seconds", metrics.Gauge, "Longest time that writers had to wait for a checkpoint.",
		func(m *scraped) float64 { return m.Agent.Paused.Seconds() })
	writePushes(w, mounts, each)
	w.Family("artifactfs_mount_operation_errors_total", metrics.Counter,
		"Requests of the kernel that failed because of the host or the remote, by errno.")
	for _, m := range mounts {
		for _, errno := range slices.Sorted(maps.Keys(m.Fails)) {
			w.Sample(float64(m.Fails[errno]), m.label, metrics.Label{Name: "error", Value: errno})
		}
	}
	w.Family("artifactfs_mount_operations_total", metrics.Counter, "Requests of the kernel by kind.")
	for _, m := range mounts {
		kinds := make([]string, 0, len(m.Ops))
		for op := range m.Ops {
			kinds = append(kinds, op)
		}
		// The order of a map is random, so the keys are sorted for a stable output.
		slices.Sort(kinds)
		for _, op := range kinds {
			w.Sample(float64(m.Ops[op]), m.label, metrics.Label{Name: "op", Value: strings.ToLower(op)})
		}
	}
}

// flag returns 1 if is is true and 0 otherwise, as the value of a gauge.
func flag(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// writePushes writes the metrics of pushes to session remotes. They are zero for a mount with an embedded session
// remote.
func writePushes(w *metrics.Writer, mounts []scraped,
	each func(name string, kind metrics.Kind, help string, value func(m *scraped) float64)) {
	const prefix = "artifactfs_session_"
	each(prefix+"pushes_total", metrics.Counter,
		"Attempts to push to the session remote, including those that found nothing to send.",
		func(m *scraped) float64 { return float64(m.Agent.Pushed.Pushes) })
	each(prefix+"push_failures_total", metrics.Counter,
		"Attempts to push that got no answer, or in which a ref was refused.",
		func(m *scraped) float64 { return float64(m.Agent.Pushed.Failures) })
	each(prefix+"push_seconds_total", metrics.Counter, "Time that pushes to the session remote took.",
		func(m *scraped) float64 { return m.Agent.Pushed.Took.Seconds() })
	each(prefix+"pushed_bytes_total", metrics.Counter, "Bytes of packs sent to the session remote.",
		func(m *scraped) float64 { return float64(m.Agent.Pushed.Bytes) })
	each(prefix+"pushed_refs_total", metrics.Counter, "Refs moved on the session remote.",
		func(m *scraped) float64 { return float64(m.Agent.Pushed.Refs) })
	each(prefix+"refused_refs_total", metrics.Counter, "Refs that the session remote refused to move.",
		func(m *scraped) float64 { return float64(m.Agent.Pushed.Refused) })
	w.Family(prefix+"last_sync_seconds", metrics.Gauge,
		"Last time at which everything was on the session remote, in seconds since the epoch.")
	for _, m := range mounts {
		// If no push has finished yet, the metric has no sample.
		if m.Session.LastSync != nil {
			w.Sample(float64(m.Session.LastSync.UnixMilli())/1e3, m.label)
		}
	}
}

// remoteFigures has the sums of the metrics over all stores with the same URL. There are several stores with one URL if
// the mounts of the remote use different credentials or options.
type remoteFigures struct {
	url                           string
	stats                         fetch.Stats
	up                            bool // whether the last request of every store with this URL succeeded
	waits, foreground, background metrics.Histogram
	relay                         *via.Usage // nil if no store uses a relay
}

// remotesOf returns the sums of the metrics over the stores of all mounts, one element for each URL. A store that
// several mounts share is counted once.
func remotesOf(mounts []scraped) (all []*remoteFigures) {
	seen, byURL := map[*fetch.Store]bool{}, map[string]*remoteFigures{}
	for _, m := range mounts {
		if m.Store == nil || seen[m.Store] {
			continue
		}
		seen[m.Store] = true
		url := m.Store.URL()
		r := byURL[url]
		if r == nil {
			r = &remoteFigures{url: url, up: true}
			byURL[url], all = r, append(all, r)
		}
		st := m.Store.Stats()
		r.up = r.up && st.Failure == nil
		r.stats.Requests += st.Requests
		r.stats.Failures += st.Failures
		r.stats.Refused = append(r.stats.Refused, st.Refused...)
		r.stats.RoundTrips += st.RoundTrips
		r.stats.Blobs += st.Blobs
		r.stats.BytesIn += st.BytesIn
		r.stats.Foreground += st.Foreground
		r.stats.Background += st.Background
		if u := m.Store.Remote().Stats().Relay; u != nil {
			if r.relay == nil {
				r.relay = &via.Usage{}
			}
			r.relay.Answers += u.Answers
			r.relay.FallThroughs += u.FallThroughs
		}
		waits, foreground, background := m.Store.Latencies()
		r.waits.Add(waits)
		r.foreground.Add(foreground)
		r.background.Add(background)
	}
	return all
}

// writeRemotes writes the metrics of remotes, which have the label "remote".
func writeRemotes(w *metrics.Writer, mounts []scraped) {
	all := remotesOf(mounts)
	label := func(r *remoteFigures) metrics.Label { return metrics.Label{Name: "remote", Value: r.url} }
	// The function each writes a metric family with one sample for each remote.
	each := func(name string, kind metrics.Kind, help string, value func(r *remoteFigures) float64) {
		w.Family(name, kind, help)
		for _, r := range all {
			w.Sample(value(r), label(r))
		}
	}
	each("artifactfs_remote_up", metrics.Gauge, "1 if the last request to the remote succeeded.",
		func(r *remoteFigures) float64 { return flag(r.up) })
	each("artifactfs_remote_failures_total", metrics.Counter, "Requests to the remote that failed.",
		func(r *remoteFigures) float64 { return float64(r.stats.Failures) })
	each("artifactfs_remote_refused_objects", metrics.Gauge, "Objects whose answers were invalid three times.",
		func(r *remoteFigures) float64 { return float64(len(r.stats.Refused)) })
	each("artifactfs_remote_requests_total", metrics.Counter, "Requests sent to the remote.",
		func(r *remoteFigures) float64 { return float64(r.stats.Requests) })
	each("artifactfs_remote_round_trips_total", metrics.Counter, "Requests sent to the remote and connections opened.",
		func(r *remoteFigures) float64 { return float64(r.stats.RoundTrips) })
	each("artifactfs_remote_received_bytes_total", metrics.Counter, "Bytes received from the remote.",
		func(r *remoteFigures) float64 { return float64(r.stats.BytesIn) })
	each("artifactfs_remote_received_blobs_total", metrics.Counter, "Contents received from the remote.",
		func(r *remoteFigures) float64 { return float64(r.stats.Blobs) })
	w.Family("artifactfs_remote_queue", metrics.Gauge, "Wanted contents that no request has asked for yet.")
	for _, r := range all {
		w.Sample(float64(r.stats.Foreground), label(r), metrics.Label{Name: "class", Value: "foreground"})
		w.Sample(float64(r.stats.Background), label(r), metrics.Label{Name: "class", Value: "background"})
	}
	relayed := func(name, help string, value func(*via.Usage) int64) {
		w.Family("artifactfs_remote_relay_"+name, metrics.Counter, help)
		for _, r := range all {
			if r.relay != nil {
				w.Sample(float64(value(r.relay)), label(r))
			}
		}
	}
	relayed("answers_total", "Answers of the relay of the remote.", func(u *via.Usage) int64 { return u.Answers })
	relayed("fall_throughs_total", "Requests that were sent to the git server because the relay has failed.",
		func(u *via.Usage) int64 { return u.FallThroughs })
	w.Family("artifactfs_fetch_wait_seconds", metrics.Histograms, "Time that readers waited for contents from the remote.")
	for _, r := range all {
		w.Histogram(&r.waits, label(r))
	}
	w.Family("artifactfs_fetch_request_seconds", metrics.Histograms,
		"Duration of requests for contents, to the last byte.")
	for _, r := range all {
		w.Histogram(&r.foreground, label(r), metrics.Label{Name: "class", Value: "foreground"})
		w.Histogram(&r.background, label(r), metrics.Label{Name: "class", Value: "background"})
	}
}
