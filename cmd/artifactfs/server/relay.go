package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/cmd/artifactfs/hosting"
	"github.com/artifactfs/artifactfs/cmd/artifactfs/serving"
	"github.com/artifactfs/artifactfs/relay"
)

// RelayCommand returns the command "relay".
func RelayCommand(a *cli.App) *cobra.Command {
	var o relay.Options
	cmd := &cobra.Command{
		Use:   "relay",
		Short: "Run a relay between the hosts of a cluster and their git servers",
		Long: `Relay runs a server that stands between many hosts and git servers over http and https, usually one for each cluster or
region. When many hosts mount the same commit, the relay fetches it once from the git server, and once each part of its
contents. Hosts use it by artifactfs mount --via URL or $ARTIFACTFS_VIA. The relay runs until SIGTERM or Ctrl-C.

Each host sends its own credential, and the relay passes it to the git server. The git server decides each time which
refs a host sees, and every five seconds whether the host may still read a commit. The relay stores no credential. If
the relay fails or is silent for 0.3 seconds, a mount asks the git server directly, so a relay is never needed, and can
be stopped at any time. Pushes and session remotes do not use it.

Stock git uses a relay as a remote whose URL is the URL of the relay, followed by the scheme, the host and the path of
the git server's repository: git clone http://RELAY:9428/https/git.example.org/team/app.git. A relay speaks git's smart
HTTP protocol only; remotes over ssh are not relayed.

Contents are stored on the local disk, in DIR of --data, up to --cache-size. With --objects they are also stored in a
bucket of an S3 service, or in a directory that several relays share, so that a new relay starts with the contents of
the others. Credentials for S3 are those of the AWS environment variables and files. Nothing is deleted there: a rule of
the bucket that deletes old objects does no harm, because the relay stores them again when they are needed.

--allow names the remotes that the relay serves: all those at and below a URL. It is required if the relay listens at
an address that other hosts can reach, because the relay sends requests to every remote that it serves.

GET /healthz succeeds while the process runs, and /metrics has metrics for Prometheus.

Each flag can be set by an environment variable, for example --objects by $ARTIFACTFS_OBJECTS.`,
		Example: `  artifactfs relay
  artifactfs relay --listen 0.0.0.0:9428 --allow https://git.example.org --cache-size 200G
  artifactfs relay --listen 0.0.0.0:9428 --allow https://git.example.org/team --objects s3://bucket/relay
  artifactfs relay --listen 0.0.0.0:9428 --allow https://git.example.org --tls-cert cert.pem --tls-key key.pem
  artifactfs mount --via http://relay.example.org:9428 https://git.example.org/team/app.git
  git clone http://relay.example.org:9428/https/git.example.org/team/app.git`,
		Annotations: cli.FromEnvironment,
		Args:        cli.Arguments(0, 0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := completeRelay(a, &o); err != nil {
				return cli.Usage(cmd, err)
			}
			return runRelay(cmd.Context(), a, o)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&o.Listen, "listen", relay.DefaultListen, "accept requests at `ADDRESS`, host:port; port 0: any free one")
	f.StringSliceVar(&o.Allow, "allow", nil,
		"serve the remotes at and below `URL`, a list; '*': all (default: all if --listen is a\n"+
			"loopback address)")
	f.StringVar(&o.Data, "data", "", "store contents in `DIR` (default: relay in the state directory)")
	f.Var((*cli.Size)(&o.CacheSize), "cache-size",
		"maximum `SIZE` of the contents in DIR, at least "+cli.SizeText(relay.LeastCacheSize)+
			"; those that were not\nused for the longest time are removed (default "+cli.SizeText(relay.DefaultCacheSize)+")")
	f.StringVar(&o.Objects, "objects", "",
		"also store contents at `URL`, s3://BUCKET/PREFIX or a directory, which relays share\n"+
			"(default: nowhere else)")
	f.StringVar(&o.TLSCert, "tls-cert", "",
		"serve https with the certificate in `FILE`, which is read again when it changes")
	f.StringVar(&o.TLSKey, "tls-key", "", "`FILE` with the key of the certificate")
	f.StringVar(&o.CAFile, "ca-file", "", "for git servers, trust the certificates in `FILE` and not those of the system")
	return cmd
}

// absolute makes those paths absolute that are not "".
func absolute(paths ...*string) (err error) {
	for _, path := range paths {
		if *path == "" {
			continue
		}
		if *path, err = filepath.Abs(*path); err != nil {
			return err
		}
	}
	return nil
}

// completeRelay checks the options of a relay and makes their paths absolute.
func completeRelay(a *cli.App, o *relay.Options) error {
	if o.Data == "" {
		o.Data = filepath.Join(a.State, "relay")
	}
	if err := absolute(&o.Data, &o.TLSCert, &o.TLSKey, &o.CAFile); err != nil {
		return err
	}
	if (o.TLSCert == "") != (o.TLSKey == "") {
		return errors.New("--tls-cert and --tls-key must be given together")
	}
	if o.CacheSize == 0 {
		o.CacheSize = relay.DefaultCacheSize
	}
	if o.CacheSize < relay.LeastCacheSize {
		return fmt.Errorf("invalid size %s for --cache-size: want at least %s", cli.SizeText(o.CacheSize),
			cli.SizeText(relay.LeastCacheSize))
	}
	host, _, err := net.SplitHostPort(o.Listen)
	if err != nil {
		return fmt.Errorf("invalid address %q for --listen: want HOST:PORT", o.Listen)
	}
	if err := relay.CheckAllowed(o.Allow); err != nil {
		return err
	}
	if len(o.Allow) == 0 {
		if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			return errors.New("--allow is missing: --allow URL names the remotes to serve, --allow '*' serves all")
		}
		o.Allow = []string{"*"}
	}
	return nil
}

// runRelay runs a relay until ctx ends, as it does after SIGTERM or Ctrl-C.
func runRelay(ctx context.Context, a *cli.App, o relay.Options) error {
	// The memory of the process contains the credentials of requests in progress, so protect it from other processes.
	if err := serving.KeepMemory(); err != nil {
		return fmt.Errorf("relay: %w", err)
	}
	log, end, err := a.NewLog(zapcore.InfoLevel)
	if err != nil {
		return err
	}
	defer end()
	o.Log = log
	r, err := relay.Open(ctx, o)
	if err != nil {
		return explainRelay(o, err)
	}
	if a.JSON {
		err = cli.PrintJSON(a.Stdout, map[string]string{"url": r.URL, "listen": r.Listen})
	} else {
		err = hosting.PrintLine(a.Stdout, "relaying at "+r.URL)
	}
	if err != nil {
		return errors.Join(err, r.Close())
	}
	log.Info("relaying", zap.String("url", r.URL), zap.String("data", o.Data), zap.Strings("allow", o.Allow))
	a.Serving = true
	err = r.Serve(ctx)
	log.Info("stopping")
	return explainRelay(o, errors.Join(err, r.Close()))
}

// explainRelay returns err as an error with an exit code, and with a hint if the user can remove the cause.
func explainRelay(o relay.Options, err error) error {
	if err == nil {
		return nil
	}
	return explainStart("relay", o.Data, o.Listen, err, relay.ErrInUse, relay.ErrObjects)
}
