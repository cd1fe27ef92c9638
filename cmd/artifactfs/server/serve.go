// Package server contains the commands that need much code that no other command needs: "serve", which runs a git
// server, "relay", which stands between hosts and their git servers, and "ui", the page of this host.
package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/cmd/artifactfs/hosting"
	"github.com/artifactfs/artifactfs/cmd/artifactfs/serving"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/internal/lazy"
	"github.com/artifactfs/artifactfs/server"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/server/running"
	"github.com/artifactfs/artifactfs/server/upkeep"
)

// serveOptions holds the flags of the command "serve".
type serveOptions struct {
	server.Options
	newToken   bool
	background bool // whether to start another process that runs the server in the background
	detached   bool // whether this is the process in the background
	terminal   bool // whether the output is shown by a terminal
	stop       bool
}

// ServeCommand returns the command "serve".
func ServeCommand(a *cli.App) *cobra.Command {
	var o serveOptions
	var compat string
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run a git server for sessions, with the REST API of Artifacts",
		Long: `Serve runs a git server whose repositories are created, forked and deleted by the REST API of Cloudflare Artifacts.
Sessions are pushed to its repositories, and its repositories can be mounted. The server needs only git, and stores
everything in DIR of --data. It runs until SIGTERM or Ctrl-C, and finishes running pushes before it ends.
--background starts it in the background, and --stop ends it.

At the first start, serve makes an admin token, which may do everything, and stores it in admin-token in DIR, where
only the user of the server can read it. It prints the token only to a terminal, not into a log. The commands repo,
token, namespace and mount --create use this token if the same user runs them on this host with the same state
directory, so no token needs to be copied there. On other hosts set $ARTIFACTFS_SERVER and $ARTIFACTFS_SERVER_TOKEN.
--new-admin-token makes another admin token, prints it, and ends.

Several servers can serve the same repositories: start each with the same --database and --objects and a separate DIR,
and put a proxy in front of them. Credentials for S3 are those of the AWS environment variables and files.

GET /healthz succeeds while the process runs, and GET /readyz while the database and the object store answer. /metrics
has metrics for Prometheus, and /openapi.json describes the API.

Each flag can be set by an environment variable, for example --database by $ARTIFACTFS_DATABASE.`,
		Example: `  artifactfs serve
  artifactfs serve --listen 0.0.0.0:8790 --tls-cert cert.pem --tls-key key.pem
  artifactfs serve --listen 127.0.0.1:8790 --public-url https://git.example.org
  artifactfs serve --database postgres://afs@db.example.org/afs --objects s3://bucket/afs
  artifactfs serve --background && artifactfs repo create team/app
  artifactfs serve --new-admin-token`,
		Annotations: cli.FromEnvironment,
		Args:        cli.Arguments(0, 0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Compat = compat != ""
			if err := completeServe(a, &o.Options); err != nil {
				return cli.Usage(cmd, err)
			}
			switch {
			case o.newToken:
				return newAdminToken(cmd.Context(), a, o.Options)
			case o.stop:
				return stop(cmd.Context(), a, o.Options)
			case o.background:
				return serveInBackground(cmd, a, o)
			}
			return serve(cmd.Context(), a, o)
		},
	}
	o.addFlags(cmd, &compat)
	return cmd
}

// addFlags adds the flags of the command "serve". The parameter compat receives the value of --compat.
func (o *serveOptions) addFlags(cmd *cobra.Command, compat *string) {
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&o.Listen, "listen", running.DefaultListen, "accept requests at `ADDRESS`, host:port; port 0: any free one")
	f.StringVar(&o.Data, "data", "", "store everything in `DIR` (default: server in the state directory)")
	f.StringVar(&o.Database, "database", "",
		"store records in the PostgreSQL database `URL` (default: an SQLite file in DIR)")
	f.StringVar(&o.Objects, "objects", "", "store git objects at `URL`, s3://BUCKET/PREFIX (default: a directory in DIR)")
	f.StringVar(&o.PublicURL, "public-url", "",
		"`URL` by which clients reach the server, if a proxy forwards their requests")
	f.Var(&o.Proxies, "trusted-proxy",
		"record the client that X-Forwarded-For names if the request comes from `CIDR`, a\n"+
			"list of addresses and networks of proxies")
	f.StringVar(&o.TLSCert, "tls-cert", "",
		"serve https with the certificate in `FILE`, which is read again when it changes")
	f.StringVar(&o.TLSKey, "tls-key", "", "`FILE` with the key of the certificate")
	f.StringVar(&o.AdminTokenFile, "admin-token-file", "", "`FILE` with the admin token; created if it does not exist\n"+
		"(default: admin-token in DIR)")
	f.BoolVar(&o.newToken, "new-admin-token", false,
		"make another admin token, print it, and end; the server may be running")
	f.StringVar(&o.Account, "account", "",
		"`ID` of the account in URLs of the API, 32 hexadecimal digits (default: a random\n"+
			"id, which is stored at the first start)")
	f.StringVar(&o.Secrets, "secrets", "", "`DIR` with credentials for imports: for repo import --secret NAME, the file\n"+
		"NAMESPACE/NAME with lines https://USER:PASSWORD@HOST")
	f.StringVar(&o.CAFile, "ca-file", "",
		"for imports and webhooks, trust the certificates in `FILE` and not those of the system")
	hosting.ChoiceFlag(cmd, &o.Private, "", "private", "whether imports and webhooks may reach addresses that are not public\n"+
		"(default: allow if --listen is a loopback address, and there is\n"+
		"no --public-url and no --trusted-proxy)", "allow", "refuse")
	f.BoolVar(&o.ImportHTTP, "import-http", false, "for tests: import by http from the loopback address")
	f.IntVar(&o.Git.Processes, "git-processes", 0,
		"run `N` clones, fetches and pushes at a time, and let others wait (default: 16 for each\n"+
			"processor); a repository gets half of them, a namespace three quarters")
	f.DurationVar(&o.Git.Time, "git-time", 0, "end a clone, fetch or push after `TIME` (default 1h)")
	f.Var((*cli.Size)(&o.GitMemory), "git-memory",
		"memory that each process of git can allocate at most, at least 64M (default 2G).\n"+
			"All together can allocate 5/8 of the memory of the machine or control group")
	f.Var((*cli.Size)(&o.Git.Push), "max-push-size", "refuse pushes that are larger than `SIZE` (default 4G)")
	f.Var(&o.Quotas, "namespace-quota",
		"`QUOTAS` of each namespace, such as bytes=10000000000,repositories=1000,refs=100000,\n"+
			"requests=6000 (in a minute, to each server); what exceeds one is refused\n"+
			"(default: none)")
	f.Var((*cli.Size)(&o.MaxEntries), "max-cache-size",
		"remove the oldest cache entries (artifactfs session cache) of each\n"+
			"repository that has more than `SIZE` of them (default: only those that have expired)")
	f.BoolVar(&o.background, "background", false,
		"start the server in the background, and return when it is ready; its log is\n"+
			"server.log in DIR")
	f.BoolVar(&o.stop, "stop", false, "stop the server of DIR, and return when it has ended")
	f.BoolVar(&o.detached, "detached", false, "")
	f.BoolVar(&o.terminal, "terminal", false, "")
	cmd.MarkFlagsMutuallyExclusive("background", "stop", "new-admin-token")
	hosting.ChoiceFlag(cmd, compat, "", "compat", "behave as the live service where it differs from its documentation",
		"cloudflare")
	f.Var(times{&o.Upkeep}, "upkeep", "for tests: interval, check, grace, unused, history (durations), crowd (packs)")
	for _, hidden := range []string{"import-http", "detached", "terminal", "upkeep"} {
		if err := f.MarkHidden(hidden); err != nil {
			panic(err)
		}
	}
}

// times is the value of the flag --upkeep, such as "interval=1s,crowd=4".
type times struct{ *upkeep.Times }

func (t times) Type() string   { return "TIMES" }
func (t times) String() string { return "" }

// Set implements pflag.Value.
func (t times) Set(text string) error {
	if *t.Times == (upkeep.Times{}) {
		*t.Times = upkeep.Default()
	}
	durations := map[string]*time.Duration{
		"interval": &t.Interval, "check": &t.Check, "grace": &t.Grace, "unused": &t.Unused, "history": &t.History,
	}
	for part := range strings.SplitSeq(text, ",") {
		name, value, _ := strings.Cut(part, "=")
		var err error
		switch d := durations[name]; {
		case d != nil:
			*d, err = time.ParseDuration(value)
		case name == "crowd":
			t.Crowd, err = strconv.Atoi(value)
		default:
			err = fmt.Errorf("unknown name %q in --upkeep", name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// leastMemory is the least value of --git-memory, in bytes. Commands that read commits get half of it.
const leastMemory = 64 << 20

// account matches the ids that --account accepts.
var account = lazy.Regexp(`^[0-9a-f]{32}$`)

// completeServe checks the options of the server and makes their paths absolute.
func completeServe(a *cli.App, o *server.Options) error {
	if o.Data == "" {
		o.Data = hosting.Dir(a)
	}
	if err := absolute(&o.Data, &o.AdminTokenFile, &o.TLSCert, &o.TLSKey, &o.Secrets, &o.CAFile); err != nil {
		return err
	}
	switch {
	case (o.TLSCert == "") != (o.TLSKey == ""):
		return errors.New("--tls-cert and --tls-key must be given together")
	case o.Git.Processes < 0:
		return fmt.Errorf("invalid number %d for --git-processes: want at least 1", o.Git.Processes)
	case o.Git.Time < 0:
		return fmt.Errorf("invalid time %s for --git-time: want more than 0", o.Git.Time)
	case o.GitMemory != 0 && o.GitMemory < leastMemory:
		return fmt.Errorf("invalid size %s for --git-memory: want at least %s", cli.SizeText(o.GitMemory),
			cli.SizeText(leastMemory))
	case o.Account != "" && !account().MatchString(o.Account):
		return fmt.Errorf("invalid account %q: want 32 hexadecimal digits", o.Account)
	}
	if _, _, err := net.SplitHostPort(o.Listen); err != nil {
		return fmt.Errorf("invalid address %q for --listen: want HOST:PORT", o.Listen)
	}
	return nil
}

// explainServe returns err as an error with an exit code. If the user can remove the cause, the error has a hint.
func explainServe(o server.Options, err error) error {
	if err == nil {
		return nil
	}
	e := explainStart("serve", o.Data, o.Listen, err, server.ErrInUse, server.ErrObjects)
	if e.Hint == "" && errors.Is(err, records.ErrUnavailable) {
		e.Hint = "--database names a PostgreSQL server that accepts connections and writes"
	}
	return e
}

// explainStart explains the errors that the commands serve and relay have in common. The parameter err is the error of
// the command verb, which stores its data in the directory data and listens at the address listen. The parameters inUse
// and objects are the errors to recognize: that another process uses the data directory, and that the object store
// cannot be used.
func explainStart(verb, data, listen string, err, inUse, objects error) *control.Error {
	e := &control.Error{Code: control.ExitFailed, Verb: verb, Object: data, Cause: err.Error()}
	switch {
	case errors.Is(err, inUse):
		e.Kind, e.Cause = control.CodeBusy, inUse.Error()
		e.Hint = "--data DIR selects another directory"
	case errors.Is(err, syscall.EADDRINUSE):
		e.Kind, e.Object, e.Cause = control.CodeBusy, listen, "another program listens at this address"
		e.Hint = "--listen HOST:PORT selects another address; port 0 is any free port"
	case errors.Is(err, objects):
		e.Hint = "--objects names an existing bucket; AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are its credentials"
	case errors.Is(err, fs.ErrPermission):
		e.Kind = control.CodePermission
		e.Hint = "--data DIR selects another directory"
	}
	return e
}

// newAdminToken prints a new admin token.
func newAdminToken(ctx context.Context, a *cli.App, o server.Options) error {
	token, err := server.NewAdmin(ctx, o)
	if err != nil {
		return explainServe(o, err)
	}
	if a.JSON {
		return cli.PrintJSON(a.Stdout, map[string]string{"token": string(token)})
	}
	return hosting.PrintLine(a.Stdout, string(token))
}

// serve runs the server until ctx ends, as it does after SIGTERM or Ctrl-C.
func serve(ctx context.Context, a *cli.App, o serveOptions) error {
	if err := serving.KeepMemory(); err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	log, end, err := a.NewLog(zapcore.InfoLevel)
	if err != nil {
		return err
	}
	defer end()
	o.Log = log
	s, err := server.Open(ctx, o.Options)
	if err != nil {
		return explainServe(o.Options, err)
	}
	err = announce(a, o, s)
	if err == nil && o.detached {
		err = detach()
	}
	if err != nil {
		return errors.Join(err, s.Close())
	}
	log.Info("serving", zap.String("url", s.URL), zap.String("account", s.Account), zap.String("data", o.Data))
	a.Serving = true
	err = s.Serve(ctx)
	log.Info("stopping")
	return explainServe(o.Options, errors.Join(err, s.Close()))
}

// announce prints the address of the server and, if the admin token is new and the output is a terminal, the admin
// token. A file, the journal or the log of a container would keep the token for other readers.
func announce(a *cli.App, o serveOptions, s *server.Server) error {
	terminal := o.terminal || cli.IsTerminal(a.Stdout)
	if a.JSON {
		told := struct {
			running.Server
			Token string `json:"token,omitempty"`
		}{Server: s.Server}
		if terminal {
			told.Token = string(s.Admin)
		}
		return cli.PrintJSON(a.Stdout, told)
	}
	if _, err := fmt.Fprintf(a.Stdout, "serving at %s\n", s.URL); err != nil {
		return cli.Printed(err)
	}
	cli.PrintLine(a.Stdout, "account", "%s", s.Account)
	switch {
	case s.Admin != "" && terminal:
		cli.PrintLine(a.Stdout, "token", "%s", string(s.Admin))
		cli.PrintLine(a.Stdout, "", "this admin token is printed once; it is also in %s", s.TokenFile)
	case s.Admin != "":
		cli.PrintLine(a.Stdout, "token", "the new admin token is in %s", s.TokenFile)
	}
	if !strings.HasSuffix(s.URL, "://"+s.Listen) {
		cli.PrintLine(a.Stdout, "listen", "%s", s.Listen)
	}
	if s.Public != "" {
		cli.PrintLine(a.Stdout, "public", "%s", s.Public)
	}
	if o.Data != hosting.Dir(a) {
		cli.PrintLine(a.Stdout, "use", "export ARTIFACTFS_SERVER=%s ARTIFACTFS_SERVER_TOKEN_FILE=%s", s.URL,
			cli.ShellWord(s.TokenFile))
	}
	return nil
}
