package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"html"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"go.uber.org/zap/zapcore"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/host/hostui"
)

// UICommand returns the command "ui". The command serves the web page of this host until it receives a signal.
func UICommand(a *cli.App) *cobra.Command {
	var listen string
	var open bool
	cmd := &cobra.Command{
		Use:   "ui [DIR|SESSION]",
		Short: "Show sessions and mounts of this host in a browser",
		Long: `Ui serves a page for the browser until Ctrl-C, and prints its URL. The page shows the sessions of this host, mounted or
not: their timelines with prompts, checkpoints and commits, files at any point, and differences. It also shows each
mount live: which files are on this host, which are being fetched, and where programs read, as a treemap with a table,
and the requests, the bytes and the blobs of each second. With DIR the page begins with the mount at DIR, with SESSION
with that session.

Nothing leaves this host: the page needs no server and no account. It only reads. While no live page is open, it costs
nothing; an open one costs the daemon about 2 % of a processor.

The URL ends in a random token, without which the page shows nothing. The token is not sent in requests that a log could
contain: the browser exchanges it for a cookie. On a loopback address, connections of other users of this host are
refused. To use the page from another machine, forward its port:
  ssh -L 8081:127.0.0.1:8081 HOST artifactfs ui --listen 127.0.0.1:8081`,
		Example: `  artifactfs ui
  artifactfs ui git --open
  artifactfs ui fix-login --listen 127.0.0.1:8081
  xdg-open "$(artifactfs ui --json | head -1 | jq -r .url)"`,
		Args: cli.Arguments(0, 1, "[DIR|SESSION]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return serveUI(cmd.Context(), a, strings.Join(args, ""), listen, open)
		},
		ValidArgsFunction: a.CompleteMounts(1),
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&listen, "listen", "127.0.0.1:0", "serve the page at `ADDRESS`, host:port; port 0: any free one")
	f.BoolVar(&open, "open", false, "open the page in the browser, by xdg-open")
	return cmd
}

// serveUI serves the web page until ctx ends. The parameter of is the directory of a mount, the name of a session, or
// "".
func serveUI(ctx context.Context, a *cli.App, of, listen string, open bool) error {
	path, err := uiPath(ctx, a, of)
	if err != nil {
		return err
	}
	log, closeLog, err := a.NewLog(zapcore.WarnLevel)
	if err != nil {
		return err
	}
	defer closeLog()
	if _, _, err := net.SplitHostPort(listen); err != nil {
		return &control.Error{Code: control.ExitUsage, Verb: "ui",
			Cause: fmt.Sprintf("invalid address %q for --listen: want HOST:PORT", listen)}
	}
	l, err := net.Listen("tcp", listen)
	if err != nil {
		e := control.Error{Code: control.ExitFailed, Verb: "listen at", Object: listen, Cause: err.Error()}
		if errors.Is(err, syscall.EADDRINUSE) {
			e.Kind, e.Cause, e.Hint = control.CodeBusy, "another program listens at this address",
				"--listen 127.0.0.1:0 takes any free port"
		}
		return &e
	}
	defer l.Close()
	page, err := hostui.New(hostui.Options{State: a.State, Log: log,
		Mounts: func(ctx context.Context) ([]hostui.Mount, bool, error) {
			return mountsOf(ctx, a)
		}}, l.Addr())
	if err != nil {
		return fmt.Errorf("ui: %w", err)
	}
	defer page.Close()
	url := "http://" + l.Addr().String() + path + "#token=" + page.Token()
	if a.JSON {
		err = cli.PrintJSON(a.Stdout, map[string]string{"url": url})
	} else {
		_, err = fmt.Fprintf(a.Stdout, "%s\n", url)
		fmt.Fprintln(a.Stderr, "artifactfs: open this URL in a browser; Ctrl-C ends the page")
	}
	if err != nil {
		return cli.Printed(err)
	}
	if at, ok := l.Addr().(*net.TCPAddr); ok && !at.IP.IsLoopback() {
		fmt.Fprintln(a.Stderr, "artifactfs: other machines can reach this address, and connections to it are not encrypted")
	}
	if open {
		forget, err := openBrowser(ctx, url)
		if err != nil {
			return err
		}
		defer forget()
	}
	return hostui.Serve(ctx, l, page)
}

// uiPath returns the path of the page to open first. The parameter of is the argument of the command: the directory of
// a mount, the name of a session, or "".
func uiPath(ctx context.Context, a *cli.App, of string) (string, error) {
	if of == "" {
		return "/", nil
	}
	mounts, asked := a.Mounts(ctx)
	if m, err := cli.Find(mounts, nil, "ui", of); err == nil {
		return hostui.LivePath(m.Dir), nil
	}
	path, ok, err := hostui.SessionPath(a.State, of)
	if err != nil || ok {
		return path, err
	}
	_, err = cli.Find(mounts, asked, "ui", of)
	e := *control.AsError(err)
	if e.Code == control.ExitNotMounted {
		e.Cause = "no mount at this directory, and no session with checkpoints of this name"
		e.Hint = cmp.Or("run artifactfs ui without an argument for all mounts and sessions", e.Hint)
	}
	return "", &e
}

// mountsOf returns the mounts of all daemons with their clients, and whether a daemon is running.
func mountsOf(ctx context.Context, a *cli.App) (list []hostui.Mount, running bool, err error) {
	served, err := a.Mounts(ctx)
	for _, s := range served {
		m := hostui.Mount{MountStatus: s.MountStatus}
		if s.Mounted() {
			m.Daemon, running = s.Client, true
		}
		list = append(list, m)
	}
	if !running && err == nil {
		var sockets []string
		sockets, err = a.Sockets(ctx)
		running = len(sockets) > 0
	}
	return list, running, err
}

// openBrowser opens a URL in the user's browser. The URL contains a secret, and other users can see the arguments of
// processes. Therefore the browser gets the name of a private file that contains the URL. The returned function forget
// removes this file.
func openBrowser(ctx context.Context, url string) (forget func(), err error) {
	opener, err := exec.LookPath("xdg-open")
	if err != nil {
		return nil, &control.Error{Code: control.ExitFailed, Verb: "open", Object: "browser",
			Cause: "xdg-open is not installed",
			Hint:  "open the URL yourself, or install xdg-utils"}
	}
	// CreateTemp creates the file with mode 0600.
	f, err := os.CreateTemp(os.Getenv("XDG_RUNTIME_DIR"), "artifactfs-ui-*.html")
	if err != nil {
		return nil, fmt.Errorf("open browser: %w", err)
	}
	forget = func() { os.Remove(f.Name()) }
	_, err = fmt.Fprintf(f, "<!doctype html><meta http-equiv=\"refresh\" content=\"0;url=%s\">\n", html.EscapeString(url))
	if err = errors.Join(err, f.Close()); err == nil {
		cmd := exec.CommandContext(ctx, opener, f.Name())
		if err = cmd.Start(); err == nil {
			go cmd.Wait() // Wait in the background, because the browser may run as long as the page is served.
			return forget, nil
		}
	}
	forget()
	return nil, fmt.Errorf("open browser: %w", err)
}
