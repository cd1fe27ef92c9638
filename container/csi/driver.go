// Package csi is a driver of the Container Storage Interface (https://github.com/container-storage-interface/spec,
// version 1.13): it provides mounts of artifactfs as volumes of pods. It serves requests of the kubelet and of the
// controllers of a cluster, and passes them to the daemon of the node, which mounts. The driver itself has no mount,
// needs no privileges, and may end at any time: its state is in a file for each volume.
//
// There are two kinds of volumes. An ephemeral volume belongs to one pod, and its mount is at the target path. A
// persistent volume is a session: its mount is at the staging path, and each pod of the node gets a bind mount.
package csi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/artifactfs/artifactfs/container/volume"
	"github.com/artifactfs/artifactfs/control"
)

// DefaultName is the default name of the driver, which volumes must state.
const DefaultName = "csi.artifactfs"

const (
	// daemonTime is the maximum time to wait for a daemon that does not run, because its container is being replaced.
	daemonTime  = 5 * time.Second
	daemonPause = 100 * time.Millisecond
)

// stopTime is the maximum time that requests in progress have when the driver is stopped. It is short because the
// daemon is stopped together with the driver. Requests then wait in the queue of the daemon's socket for the next
// daemon, which does not start before the driver has ended. The caller repeats such requests.
const stopTime = time.Second

// Config configures a driver.
type Config struct {
	Name    string // name of the driver; see DefaultName
	Version string
	Socket  string // path of the socket on which requests are served
	// Node is the name of the node; "" means that the driver serves no requests of a node.
	Node string
	// Controller makes the driver serve requests that create and delete persistent volumes.
	Controller bool
	// RegistrationDir is the kubelet's directory for the sockets of plugins; "": the driver is not registered.
	// KubeletSocket is the path of Socket for the kubelet.
	RegistrationDir, KubeletSocket string
	Volumes                        string // directory of the files that store the volumes
	Via                            string // URL of the relay for volumes whose attributes name none; "": none
	MaxVolumes                     int64  // maximum number of volumes of the node; 0: unknown

	// Dial connects to the daemon of the node.
	Dial func(ctx context.Context) (Daemon, error)
	Log  *zap.Logger
}

// Daemon is the part of control.Client that a driver uses.
type Daemon interface {
	volume.Daemon
	Status(ctx context.Context) (control.Status, error)
	SetCredential(ctx context.Context, r control.CredentialRequest) (control.CredentialReply, error)
}

// daemon connects to the daemon of the node. If the daemon is being replaced, it waits for the new one.
func (c *Config) daemon(ctx context.Context) (Daemon, error) {
	for end := time.Now().Add(daemonTime); ; {
		d, err := c.Dial(ctx)
		if !errors.Is(err, control.ErrNoServer) || time.Now().After(end) {
			return d, err
		}
		select {
		case <-time.After(daemonPause):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// Run serves requests until ctx ends.
func Run(ctx context.Context, c Config) error {
	if err := os.MkdirAll(c.Volumes, 0o700); err != nil {
		return err
	}
	records := &records{dir: c.Volumes, busy: map[string]bool{}}
	server := grpc.NewServer(grpc.UnaryInterceptor(c.logged))
	csi.RegisterIdentityServer(server, &identity{Config: c})
	if c.Controller {
		csi.RegisterControllerServer(server, &controller{Config: c, records: records})
	}
	if c.Node != "" {
		csi.RegisterNodeServer(server, newNode(c, records))
	}
	l, err := listen(c.Socket)
	if err != nil {
		return err
	}
	servers, ended := []*grpc.Server{server}, make(chan error, 2)
	go func() { ended <- server.Serve(l) }()
	c.Log.Info("serving", zap.String("driver", c.Name), zap.String("version", c.Version), zap.String("socket", c.Socket),
		zap.String("node", c.Node), zap.Bool("controller", c.Controller), zap.Int64("max_volumes", c.MaxVolumes))
	if c.RegistrationDir != "" {
		r, l, err := c.registration(ended)
		if err != nil {
			server.Stop()
			return err
		}
		servers = append(servers, r)
		go func() { ended <- r.Serve(l) }()
	}
	select {
	case err = <-ended:
	case <-ctx.Done():
	}
	stop(servers)
	return err
}

// stop waits until the requests in progress are finished, but at most for stopTime.
func stop(servers []*grpc.Server) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, s := range servers {
			s.GracefulStop()
		}
	}()
	select {
	case <-done:
	case <-time.After(stopTime):
		for _, s := range servers {
			s.Stop()
		}
	}
}

// listen listens at a socket. It replaces the socket of an earlier process, which may still run while its pod is
// replaced. So no process removes the socket at its end.
func listen(socket string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		return nil, err
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	return l, nil
}

// registration returns a server of the socket by which the kubelet finds the driver (pluginregistration/v1). If the
// kubelet refuses the driver, the server sends the reason to the channel failed.
func (c *Config) registration(failed chan<- error) (*grpc.Server, net.Listener, error) {
	l, err := listen(filepath.Join(c.RegistrationDir, c.Name+"-reg.sock"))
	if err != nil {
		return nil, nil, err
	}
	s := grpc.NewServer()
	registration.RegisterRegistrationServer(s, &registrar{Config: c, failed: failed})
	return s, l, nil
}

// registrar answers the requests of the kubelet for the registration.
type registrar struct {
	registration.UnimplementedRegistrationServer
	*Config
	failed chan<- error
}

func (r *registrar) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: registration.CSIPlugin, Name: r.Name, Endpoint: r.KubeletSocket,
		SupportedVersions: []string{"1.0.0"}}, nil
}

func (r *registrar) NotifyRegistrationStatus(_ context.Context, s *registration.RegistrationStatus) (
	*registration.RegistrationStatusResponse, error) {
	if !s.PluginRegistered {
		select {
		case r.failed <- fmt.Errorf("register with kubelet: %s", s.Error):
		default:
		}
	} else {
		r.Log.Info("registered with the kubelet")
	}
	return &registration.RegistrationStatusResponse{}, nil
}

// identity answers requests for the name and the capabilities of the driver.
type identity struct {
	csi.UnimplementedIdentityServer
	Config
}

func (i *identity) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: i.Name, VendorVersion: i.Version}, nil
}

func (i *identity) GetPluginCapabilities(context.Context,
	*csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	r := &csi.GetPluginCapabilitiesResponse{}
	if i.Controller {
		r.Capabilities = append(r.Capabilities, &csi.PluginCapability{Type: &csi.PluginCapability_Service_{
			Service: &csi.PluginCapability_Service{Type: csi.PluginCapability_Service_CONTROLLER_SERVICE}}})
	}
	return r, nil
}

// Probe reports that the driver is ready if the daemon of the node answers.
func (i *identity) Probe(ctx context.Context, _ *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	if i.Node != "" {
		if _, err := i.Dial(ctx); err != nil {
			return nil, failure(err)
		}
	}
	return &csi.ProbeResponse{}, nil
}
