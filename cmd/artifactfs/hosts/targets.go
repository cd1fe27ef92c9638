// Package hosts reads the metrics of the daemons of many hosts and summarizes them: a sample for each host, and the
// rates between two samples.
//
// Terms. A target is the address of the metrics of one daemon: HOST:PORT or unix:PATH. A list names targets: directly,
// by a file in the format of Prometheus's file-based service discovery, or by a name in the DNS.
package hosts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const (
	unixPrefix = "unix:"
	// prefix of dns:NAME:PORT: all addresses of a name, for example of a headless service of Kubernetes
	dnsPrefix = "dns:"
	srvPrefix = "srv:" // prefix of srv:NAME: the targets of an SRV record
)

// resolver looks up names. Tests replace it.
var resolver = net.DefaultResolver

// FileName is the name of the file that lists the hosts if the command line names none.
const FileName = "hosts.json"

// DefaultList returns the path of the file that lists the hosts if the command line names none: the user's file or, if
// it does not exist, the system's file. If neither exists, DefaultList returns an error that names both.
func DefaultList() (string, error) {
	var paths []string
	if dir, err := os.UserConfigDir(); err == nil {
		paths = append(paths, filepath.Join(dir, "artifactfs", FileName))
	}
	paths = append(paths, filepath.Join("/etc/artifactfs", FileName))
	for _, path := range paths {
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("no list of hosts in %s", strings.Join(paths, " and "))
}

// Resolve returns the targets that a list names, sorted and without duplicates. The list consists of items that are
// separated by commas. An item is the path of a file (it contains a slash or ends in .json), dns:NAME:PORT, srv:NAME,
// HOST:PORT or unix:PATH. The caller calls Resolve again for each sample, because files and names change.
func Resolve(ctx context.Context, list string) ([]string, error) {
	var all []string
	for item := range strings.SplitSeq(list, ",") {
		if item = strings.TrimSpace(item); item == "" {
			continue
		}
		found, err := resolve(ctx, item)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	if len(all) == 0 {
		return nil, errors.New("the list of hosts is empty")
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// resolve returns the targets that one item of a list names.
func resolve(ctx context.Context, item string) ([]string, error) {
	if strings.HasPrefix(item, unixPrefix) {
		return []string{item}, nil
	}
	if name, ok := strings.CutPrefix(item, srvPrefix); ok {
		return srv(ctx, name)
	}
	if target, ok := strings.CutPrefix(item, dnsPrefix); ok {
		return addresses(ctx, target)
	}
	if strings.Contains(item, "/") || filepath.Ext(item) == ".json" {
		return readFile(item)
	}
	return []string{item}, validTarget(item)
}

// addresses returns a target for each address of NAME:PORT.
func addresses(ctx context.Context, target string) (all []string, err error) {
	if err := validTarget(target); err != nil {
		return nil, err
	}
	name, port, _ := net.SplitHostPort(target)
	found, err := resolver.LookupHost(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("look up %s: %w", name, err)
	}
	for _, address := range found {
		all = append(all, net.JoinHostPort(address, port))
	}
	return all, nil
}

// srv returns the targets of the SRV records of a name.
func srv(ctx context.Context, name string) (all []string, err error) {
	_, records, err := resolver.LookupSRV(ctx, "", "", name)
	if err != nil {
		return nil, fmt.Errorf("look up %s: %w", name, err)
	}
	for _, r := range records {
		all = append(all, net.JoinHostPort(strings.TrimSuffix(r.Target, "."), strconv.Itoa(int(r.Port))))
	}
	return all, nil
}

// readFile returns the targets in a file in the JSON format of Prometheus's file-based service discovery
// (prometheus.io/docs/prometheus/latest/configuration, file_sd_config).
func readFile(path string) (all []string, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read list of hosts: %w", err)
	}
	var groups []struct {
		Targets []string `json:"targets"`
	}
	if err := json.Unmarshal(text, &groups); err != nil {
		return nil, fmt.Errorf("read list of hosts: %s: %w", path, err)
	}
	for _, g := range groups {
		for _, target := range g.Targets {
			if !strings.HasPrefix(target, unixPrefix) {
				if err := validTarget(target); err != nil {
					return nil, fmt.Errorf("read list of hosts: %s: %w", path, err)
				}
			}
			all = append(all, target)
		}
	}
	return all, nil
}

// validTarget returns an error if a target does not have the form HOST:PORT.
func validTarget(target string) error {
	host, port, err := net.SplitHostPort(target)
	if err == nil && host != "" {
		if n, err := strconv.ParseUint(port, 10, 16); err == nil && n > 0 {
			return nil
		}
	}
	return fmt.Errorf("host %q does not have the form HOST:PORT", target)
}
