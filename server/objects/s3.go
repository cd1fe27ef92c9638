package objects

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/artifactfs/artifactfs/internal/disk"
)

const (
	tries         = 4                // attempts of one request, with growing delays between them
	resumes       = 4                // number of times that a broken download is resumed without progress
	stall         = 30 * time.Second // time without a byte after which a transfer is regarded as broken
	partSize      = 64 << 20         // size in bytes above which files are uploaded in parts of this size
	parallelParts = 3                // number of parts of one file that are uploaded at the same time
	readyWait     = 5 * time.Second
)

// S3 is a Store in a bucket of an S3 service.
type S3 struct {
	client *minio.Client
	bucket string
	prefix string // prefix of all keys; "" or ends with a slash
}

var _ Store = (*S3)(nil)

// openS3 returns the store at s3://BUCKET/PREFIX. The query parameters endpoint (such as http://127.0.0.1:9000) and
// region take precedence over the variables AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, AWS_REGION and AWS_DEFAULT_REGION.
// Credentials come from AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, from ~/.aws/credentials, or
// from the role of the host. openS3 does not connect to the service; Ready does.
func openS3(location string) (*S3, error) {
	u, err := url.Parse(location)
	if err != nil {
		// The error of package url contains the URL, which may contain a secret by mistake.
		return nil, errors.New("open object store: the URL is not valid: use s3://BUCKET/PREFIX")
	}
	if u.User != nil {
		return nil,
			errors.New("open object store: the URL contains credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY instead")
	}
	if u.Scheme != "s3" || u.Host == "" {
		return nil, errors.New("open object store: the URL names no bucket: use s3://BUCKET/PREFIX")
	}
	query := u.Query()
	for name := range query {
		if name != "endpoint" && name != "region" {
			return nil, fmt.Errorf("open object store: unknown parameter %q: use endpoint and region", name)
		}
	}
	prefix := strings.Trim(u.Path, "/")
	if prefix != "" {
		if err := checkKey(prefix); err != nil {
			return nil, fmt.Errorf("open object store: %w", err)
		}
		prefix += "/"
	}
	address := cmp.Or(query.Get("endpoint"), os.Getenv("AWS_ENDPOINT_URL_S3"), os.Getenv("AWS_ENDPOINT_URL"),
		"https://s3.amazonaws.com")
	endpoint, err := url.Parse(address)
	if err != nil || endpoint.Host == "" || endpoint.User != nil || strings.Trim(endpoint.Path, "/") != "" {
		return nil, errors.New("open object store: the endpoint is not of the form http://HOST:PORT")
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.ResponseHeaderTimeout = stall
	transport.MaxIdleConnsPerHost = 32
	keys := []credentials.Provider{&credentials.EnvAWS{}, &credentials.FileAWSCredentials{}, &credentials.IAM{}}
	client, err := minio.New(endpoint.Host, &minio.Options{
		Creds:        credentials.NewChainCredentials(keys),
		Secure:       endpoint.Scheme != "http",
		Transport:    detached{transport},
		Region:       cmp.Or(query.Get("region"), os.Getenv("AWS_REGION"), os.Getenv("AWS_DEFAULT_REGION"), "us-east-1"),
		BucketLookup: minio.BucketLookupPath,
		MaxRetries:   tries,
	})
	if err != nil {
		return nil, fmt.Errorf("open object store: %w", err)
	}
	return &S3{client: client, bucket: u.Host, prefix: prefix}, nil
}

// Put implements Store. The service makes a file visible when it is complete and its checksum is correct.
func (s *S3) Put(ctx context.Context, key, path string) error { return s.put(ctx, key, path, false) }

// put does the same as Put. If absent is true, it fails with status 412 if there is a file under the key.
func (s *S3) put(ctx context.Context, key, path string, absent bool) error {
	if err := checkKey(key); err != nil {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("store object %s: %w", key, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("store object %s: %w", key, err)
	}
	// The service compares the MD5, and refuses an upload that was changed on the way. Newer kinds of checksums follow the
	// contents; minio-go 7.4.1 computes them wrongly when it repeats an upload.
	options := minio.PutObjectOptions{
		PartSize: partSize, NumThreads: parallelParts, SendContentMd5: true, ContentType: "application/octet-stream",
	}
	if absent {
		options.SetMatchETagExcept("*")
	}
	done, err := s.client.PutObject(ctx, s.bucket, s.prefix+key, f, info.Size(), options)
	if err == nil && done.Size != info.Size() {
		err = fmt.Errorf("%w: %d of %d bytes were stored", ErrUnavailable, done.Size, info.Size())
	}
	if err != nil {
		return fmt.Errorf("store object %s: %w", key, s.classify(ctx, err))
	}
	return nil
}

// Get implements Store. It resumes a download that breaks, and compares the length with that which the service has
// stated.
func (s *S3) Get(ctx context.Context, key, to string) (err error) {
	if err := checkKey(key); err != nil {
		return err
	}
	err = disk.Replace(disk.OS, to, 0o444, func(f disk.File) error {
		d := download{s: s, key: s.prefix + key, to: f}
		for attempt := 0; ; attempt++ {
			before := d.done
			if err := d.run(ctx); err == nil || attempt >= resumes || !errors.Is(err, errBroken) || ctx.Err() != nil {
				return err
			}
			if d.done > before {
				attempt = 0
			}
		}
	})
	if err != nil {
		return fmt.Errorf("read object %s: %w", key, s.classify(ctx, err))
	}
	return nil
}

// errBroken means that the connection broke in the middle of a download.
var errBroken = errors.New("download was interrupted")

// download is a file that is being downloaded.
type download struct {
	s    *S3
	key  string
	to   io.WriterAt
	done int64
	size int64  // size of the whole file, known after the first answer
	etag string // ETag of the file
}

// run downloads the part of the file that is missing. It returns errBroken if a further call may get more.
func (d *download) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var options minio.GetObjectOptions
	if d.done > 0 {
		if err := options.SetRange(d.done, 0); err != nil {
			return err
		}
		if err := options.SetMatchETag(d.etag); err != nil {
			return err
		}
	}
	body, info, _, err := minio.Core{Client: d.s.client}.GetObject(ctx, d.s.bucket, d.key, options)
	if err != nil {
		return err
	}
	defer body.Close()
	if d.done == 0 {
		d.size, d.etag = info.Size, info.ETag
	}
	timer := time.AfterFunc(stall, cancel)
	defer timer.Stop()
	n, err := io.Copy(io.NewOffsetWriter(d.to, d.done), &watched{body, timer})
	d.done += n
	var local *os.PathError
	switch {
	case errors.As(err, &local):
		return err
	case err != nil:
		return fmt.Errorf("%w: %w", errBroken, err)
	case d.done != d.size:
		return fmt.Errorf("%w: %d of %d bytes arrived", errBroken, d.done, d.size)
	}
	return nil
}

// watched is a reader that restarts a timer whenever bytes arrive.
type watched struct {
	r     io.Reader
	timer *time.Timer
}

// Read implements io.Reader.
func (w *watched) Read(p []byte) (int, error) {
	n, err := w.r.Read(p)
	w.timer.Reset(stall)
	return n, err
}

// Delete implements Store.
func (s *S3) Delete(ctx context.Context, key string) error {
	if err := checkKey(key); err != nil {
		return err
	}
	err := s.classify(ctx, s.client.RemoveObject(ctx, s.bucket, s.prefix+key, minio.RemoveObjectOptions{}))
	if err != nil && !errors.Is(err, ErrNotFound) {
		return fmt.Errorf("delete object %s: %w", key, err)
	}
	return nil
}

// Ready implements Store. Its error is ErrUnavailable only if the service did not answer or failed, not if it refused
// the credentials or has no such bucket.
func (s *S3) Ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyWait)
	defer cancel()
	found, err := s.client.BucketExists(ctx, s.bucket)
	var answer minio.ErrorResponse
	switch {
	case errors.As(err, &answer) && answer.StatusCode >= 400 && answer.StatusCode < 500 &&
		answer.StatusCode != http.StatusTooManyRequests:
		return fmt.Errorf("look up bucket %s: the service answers status %d: %w", s.bucket, answer.StatusCode, err)
	case err != nil:
		return fmt.Errorf("%w: look up bucket %s: %w", ErrUnavailable, s.bucket, err)
	case !found:
		return fmt.Errorf("bucket %s does not exist", s.bucket)
	}
	return nil
}

// Shared implements Store.
func (s *S3) Shared() bool { return true }

// classify wraps an error in the sentinels of this package. An error without an answer of the service means that it is
// unavailable, as do refused credentials, which only the operator can change.
func (s *S3) classify(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil || errors.Is(err, ErrUnavailable) {
		return err
	}
	var local *os.PathError
	if errors.As(err, &local) {
		return Classify(err)
	}
	var answer minio.ErrorResponse
	if !errors.As(err, &answer) {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	switch {
	case answer.Code == minio.NoSuchKey, answer.StatusCode == http.StatusNotFound && answer.Code != minio.NoSuchBucket:
		return fmt.Errorf("%w: %w", ErrNotFound, err)
	case answer.StatusCode == http.StatusInsufficientStorage, full[answer.Code]:
		return fmt.Errorf("%w: %w", ErrFull, err)
	case answer.StatusCode == 0, answer.StatusCode >= 500, answer.StatusCode == http.StatusTooManyRequests,
		answer.StatusCode == http.StatusForbidden, answer.Code == minio.NoSuchBucket:
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return err
}

// full contains the error codes with which services report that they have no space left.
var full = map[string]bool{"XMinioStorageFull": true, "QuotaExceeded": true, "XMinioAdminBucketQuotaExceeded": true,
	"StorageFull": true}
