package server

import (
	"net/netip"
	"path/filepath"

	"github.com/artifactfs/artifactfs/internal/certfile"
	"github.com/artifactfs/artifactfs/server/egress"
	"github.com/artifactfs/artifactfs/server/imports"
	"github.com/artifactfs/artifactfs/server/replica"
	"github.com/artifactfs/artifactfs/server/webhooks"
)

// outgoing starts imports and webhooks, which connect to other servers.
func (s *Server) outgoing(replicas *replica.Set) (*imports.Importer, error) {
	o := s.o
	importer, err := imports.New(imports.Options{Account: s.Account, Records: s.db, Replicas: replicas,
		Scratch: filepath.Join(o.Data, "imports"), Secrets: o.Secrets, CAFile: o.CAFile, AllowPrivate: s.allowPrivate(),
		AllowHTTP: o.ImportHTTP, Compat: o.Compat, Quotas: s.quotas, Memory: s.memory, Meter: s.meter, Log: s.log})
	if err != nil {
		return nil, err
	}
	s.closeLater(importer.Close)
	roots, err := certfile.Roots(o.CAFile)
	if err != nil {
		return nil, err
	}
	sender := webhooks.New(webhooks.Options{Store: s.db.Webhooks, Changed: s.db.Events.Changed, Log: s.log,
		Dialer: egress.Dialer{AllowPrivate: s.allowPrivate(), Roots: roots}})
	s.closeLater(sender.Close)
	s.meter.Register(sender.Metrics)
	s.meter.Register(importer.Metrics)
	s.meter.Register(s.stream.Metrics)
	s.meter.Register(s.db.Metrics)
	s.meter.Register(replicas.Metrics)
	s.meter.Register(writeMemory(s.memory))
	return importer, nil
}

// allowPrivate reports whether imports and webhooks may connect to addresses that are not public. Unless
// Options.Private decides it, they may if only users of this host can reach the server: it listens at the loopback
// address, has no public URL, and trusts no proxy.
func (s *Server) allowPrivate() bool {
	switch s.o.Private {
	case "allow":
		return true
	case "refuse":
		return false
	}
	at, err := netip.ParseAddrPort(s.listener.Addr().String())
	return err == nil && at.Addr().IsLoopback() && s.o.PublicURL == "" && len(s.o.Proxies) == 0
}
