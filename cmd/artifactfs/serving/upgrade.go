package serving

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/internal/mountinfo"
)

const (
	// timeout for the supervisor to start the new executable and, if that fails, the old one again
	upgradeTime = 2 * time.Minute
	// upgradePoll is the interval between two checks whether the upgrade is complete.
	upgradePoll = 5 * time.Millisecond
)

// upgradeReply is the output of the command "daemon --upgrade --json".
type upgradeReply struct {
	From   string `json:"from"`
	To     string `json:"to"`
	Mounts int    `json:"mounts"`
	Took   int64  `json:"took_ms"` // time until all mounts were served again
}

// upgradeDaemon replaces the executable of the running daemon by the executable of this process, and prints the result.
// The supervisor does the upgrade. If the new executable cannot serve the mounts, the supervisor starts the old one
// again, and upgradeDaemon returns an error with the reason.
func upgradeDaemon(ctx context.Context, a *cli.App) error {
	executable, err := os.Executable()
	if err == nil {
		executable, err = filepath.EvalSymlinks(executable)
	}
	if err != nil {
		return cli.Failure("upgrade", "daemon", err)
	}
	if err := CheckExecutable(executable); err != nil {
		return err
	}
	client, err := control.Dial(ctx, a.DaemonSocket())
	if errors.Is(err, control.ErrNoServer) {
		return &control.Error{Code: control.ExitFailed, Kind: control.CodeNoDaemon, Verb: "upgrade", Object: "daemon",
			Cause: "no daemon is running",
			Hint:  "the next mount will start this version"}
	} else if err != nil {
		return cli.Failure("upgrade", "daemon", err)
	}
	ctx, cancel := context.WithTimeout(ctx, upgradeTime)
	defer cancel()
	before, err := client.Status(ctx)
	if err != nil {
		return cli.Failure("upgrade", "daemon", err)
	}
	start := time.Now()
	// The worker that receives the request ends during a successful upgrade, so there is a reply only if the upgrade has
	// failed.
	if err := client.Upgrade(ctx, control.UpgradeRequest{Executable: executable}); !errors.Is(err, control.ErrNoServer) {
		if err == nil {
			err = errors.New("upgrade daemon: the daemon sent no result")
		}
		return cli.Failure("upgrade", "daemon", err)
	}
	after, err := awaitUpgrade(ctx, client, before)
	if err != nil {
		return cli.Failure("upgrade", "daemon", err)
	}
	if why := after.Daemon.UpgradeFailed; why != "" {
		return &control.Error{Code: control.ExitFailed, Verb: "upgrade", Object: "daemon", Cause: why,
			Hint: "version " + after.Daemon.Version + " serves the mounts; see the daemon's log"}
	}
	r := upgradeReply{From: before.Daemon.Version, To: after.Daemon.Version, Mounts: len(after.Mounts),
		Took: time.Since(start).Milliseconds()}
	if a.JSON {
		return cli.PrintJSON(a.Stdout, r)
	}
	_, err = fmt.Fprintf(a.Stdout, "upgraded from %s to %s in %d ms, %s\n", r.From, r.To, r.Took,
		cli.Plural(int64(r.Mounts), "mount"))
	return err
}

// awaitUpgrade waits until another process serves every mount of the previous process, or has given the mount up.
func awaitUpgrade(ctx context.Context, client *control.Client, before control.Status) (control.Status, error) {
	for {
		now, err := client.Status(ctx)
		if err != nil {
			return now, err
		}
		if now.Daemon.PID != before.Daemon.PID && allServed(now) {
			return now, nil
		}
		select {
		case <-time.After(upgradePoll):
		case <-ctx.Done():
			return now, ctx.Err()
		}
	}
}

// allServed reports whether no mount is being prepared.
func allServed(s control.Status) bool {
	for _, m := range s.Mounts {
		if m.State == control.StatePreparing {
			return false
		}
	}
	return true
}

// CheckExecutable returns an error if path is in a mount of artifactfs, because a daemon that runs from a mount that it
// serves would wait for itself. CheckExecutable does not access the file.
func CheckExecutable(path string) error {
	table, err := mountinfo.Self()
	if err != nil {
		return cli.Failure("upgrade", "daemon", err)
	}
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		if cli.HasMount(table, dir) {
			return &control.Error{Code: control.ExitFailed, Verb: "upgrade", Object: "daemon",
				Cause: path + " is inside a mount that the daemon may have to serve",
				Hint:  "copy the program elsewhere and run it from there"}
		}
		if dir == "/" || dir == "." {
			return nil
		}
	}
}
