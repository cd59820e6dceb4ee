-- Views over the tables of a store; every session that answers SQL creates them.
-- A statement ends with a semicolon at the end of its line. What is in braces is filled in from the
-- list of percentiles in store/schema.py; `bench-spark tables register` prints the views.

-- A window is published again whenever late events change it: the newest publication counts.
-- The last interval may grow: it has the end of its newest publication.
-- No percentile is above the true maximum; rows written by earlier releases may have one.
CREATE OR REPLACE TEMPORARY VIEW metrics_latest AS
SELECT run_id, query_id, batch_id, window, window_start, window_end, window_seconds, measure, sent,
       received, sent_per_second, received_per_second, count, negative, overflow, min_us, mean_us,
       {bounded_percentiles}, max_us, written_at
FROM (
  SELECT *, row_number() OVER (
      PARTITION BY run_id, window, window_start, IF(window = 'rolling', window_end, NULL), measure
      ORDER BY written_at DESC, batch_id DESC) AS publication
  FROM metrics)
WHERE publication = 1;

-- Latency percentiles of each interval of the measured phase. In a run that ended before its time,
-- what began as an interval of its own may have become part of the one before, or of the drain.
CREATE OR REPLACE TEMPORARY VIEW latency_by_interval AS
SELECT m.run_id, m.measure, m.window_start AS interval_start, m.window_seconds AS interval_seconds,
       m.sent_per_second, m.received_per_second, m.count, m.min_us, m.mean_us,
       {percentiles}, m.max_us
FROM (
  SELECT *, max(window_end) OVER (
      PARTITION BY run_id, measure ORDER BY window_start
      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS covered_until
  FROM metrics_latest WHERE window = 'interval' AND measure IS NOT NULL) m
LEFT JOIN runs r ON r.run_id = m.run_id
WHERE (r.measured_until IS NULL OR m.window_start < r.measured_until)
  AND (m.covered_until IS NULL OR m.window_start >= m.covered_until);

-- The fields of the metrics specification under its own names, one row per run. Its rates are counts
-- divided by the length of the measured phase; the last two columns are the rates of the result.
CREATE OR REPLACE TEMPORARY VIEW latency_spec AS
SELECT r.run_id, r.scenario, r.broker, r.status, r.started_at,
       s.min_us AS latency_min_us, s.max_us AS latency_max_us, s.mean_us AS latency_mean_us,
       least(s.p50_us, s.max_us) AS latency_p50_us, least(s.p95_us, s.max_us) AS latency_p95_us,
       least(s.p99_us, s.max_us) AS latency_p99_us, least(s.p999_us, s.max_us) AS latency_p999_us,
       r.counts['sent'] AS messages_sent, r.counts['received'] AS messages_received,
       r.counts['confirmed'] AS messages_acked,
       r.counts['bytes_sent'] AS bytes_sent, r.counts['bytes_received'] AS bytes_received,
       coalesce(r.counts['errors'], 0) + coalesce(r.counts['refused'], 0)
         + coalesce(r.counts['returned'], 0) AS errors,
       r.counts['sent'] / r.measured_seconds AS send_rate,
       r.counts['received'] / r.measured_seconds AS receive_rate,
       r.delivery_rate, r.rates['send_rate'] AS sent_per_second,
       r.rates['receive_rate'] AS received_per_second
FROM (SELECT *, nullif(CAST(get_json_object(result_json, '$.measured_seconds') AS DOUBLE), 0)
        AS measured_seconds FROM runs) r
LEFT JOIN summary s
  ON s.run_id = r.run_id AND s.aggregation = 'run' AND s.measure = 'latency';

-- The highest 99th, 95th and 75th percentile that any interval of the run has seen.
CREATE OR REPLACE TEMPORARY VIEW latency_by_rate AS
SELECT r.run_id, r.suite, r.trial, r.scenario, r.broker, r.status,
       CAST(get_json_object(r.scenario_json, '$.load.rate_per_second') AS DOUBLE)
         AS rate_per_second,
       get_json_object(r.scenario_json, '$.load.mode') AS load_mode,
       r.rates['send_rate'] AS send_rate, r.rates['receive_rate'] AS receive_rate,
       least(s.p99_us, s.max_us) AS max_p99_us, least(s.p95_us, s.max_us) AS max_p95_us,
       least(s.p75_us, s.max_us) AS max_p75_us, r.started_at
FROM runs r JOIN summary s
  ON s.run_id = r.run_id AND s.aggregation = 'interval_max' AND s.measure = 'latency';

-- What each run cost its broker in the measured phase. Two sources on one machine may be about the
-- same processes: the busiest counts. CPU is the mean over the machines, bytes are their sum.
CREATE OR REPLACE TEMPORARY VIEW broker_costs AS
SELECT run_id,
       100 * avg(user_of_machine) AS cpu_user_percent,
       100 * avg(system_of_machine) AS cpu_system_percent,
       100 * avg(user_of_core) AS cpu_user_percent_of_core,
       100 * avg(system_of_core) AS cpu_system_percent_of_core,
       sum(device_written_bytes) / 1e6 AS disk_mb, sum(written_bytes) / 1e6 AS handed_mb
FROM (
  SELECT run_id, host, max(user_of_machine) AS user_of_machine,
         max(system_of_machine) AS system_of_machine, max(user_of_core) AS user_of_core,
         max(system_of_core) AS system_of_core, max(written_bytes) AS written_bytes,
         max(device_written_bytes) AS device_written_bytes
  FROM (
    SELECT run_id, host, source,
           sum(cpu_user_share_of_machine * interval_seconds)
             / sum(CASE WHEN cpu_user_share_of_machine IS NOT NULL THEN interval_seconds END)
             AS user_of_machine,
           sum(cpu_system_share_of_machine * interval_seconds)
             / sum(CASE WHEN cpu_system_share_of_machine IS NOT NULL THEN interval_seconds END)
             AS system_of_machine,
           sum(cpu_user_share_of_core * interval_seconds)
             / sum(CASE WHEN cpu_user_share_of_core IS NOT NULL THEN interval_seconds END)
             AS user_of_core,
           sum(cpu_system_share_of_core * interval_seconds)
             / sum(CASE WHEN cpu_system_share_of_core IS NOT NULL THEN interval_seconds END)
             AS system_of_core,
           sum(written_bytes) AS written_bytes, sum(device_written_bytes) AS device_written_bytes
    FROM resources WHERE phase = 'measure' GROUP BY run_id, host, source)
  GROUP BY run_id, host)
GROUP BY run_id;

-- The mean over the intervals, of the latency and of the producer's confirmation, and what it
-- cost the broker. `queue` is the number of queues or topics that consumers receive from;
-- `parameters` are the values of the suite's axes.
CREATE OR REPLACE TEMPORARY VIEW interval_means AS
SELECT r.run_id, r.suite, r.trial, r.scenario, r.broker, r.status, r.parameters,
       CASE get_json_object(r.scenario_json, '$.topology')
         WHEN 'fan-out' THEN CAST(get_json_object(r.scenario_json, '$.consumers') AS INT)
           * CAST(get_json_object(r.scenario_json, '$.subscriptions_per_consumer') AS INT)
         ELSE CAST(get_json_object(r.scenario_json, '$.destinations') AS INT) END AS queue,
       r.rates['send_rate'] AS sent_per_second, r.rates['receive_rate'] AS received_per_second,
       l.min_us, l.mean_us AS avg_us, least(l.p95_us, l.max_us) AS p95_us,
       least(l.p99_us, l.max_us) AS p99_us,
       c.min_us AS confirm_min_us, c.mean_us AS confirm_avg_us,
       least(c.p95_us, c.max_us) AS confirm_p95_us, least(c.p99_us, c.max_us) AS confirm_p99_us,
       b.disk_mb, b.handed_mb, b.cpu_user_percent, b.cpu_system_percent,
       b.cpu_user_percent_of_core, b.cpu_system_percent_of_core, r.started_at
FROM runs r
LEFT JOIN summary l
  ON l.run_id = r.run_id AND l.aggregation = 'interval_mean' AND l.measure = 'latency'
LEFT JOIN summary c
  ON c.run_id = r.run_id AND c.aggregation = 'interval_mean' AND c.measure = 'confirm_latency'
LEFT JOIN broker_costs b ON b.run_id = r.run_id;

-- One row per message and delivery, of runs with `trace`: a fan-out has several of each message, and
-- a message that was not received has one without a time of arrival.
CREATE OR REPLACE TEMPORARY VIEW message_times AS
SELECT s.run_id, concat_ws('-', s.producer, s.sequence) AS id, s.producer, s.sequence,
       coalesce(r.destination, s.destination) AS destination, s.phase, r.subscription, s.size,
       timestamp_micros(s.intended_ns div 1000) AS intended,
       timestamp_micros(s.sent_ns div 1000) AS sent,
       timestamp_micros(c.at_ns div 1000) AS confirmed,
       timestamp_micros(r.at_ns div 1000) AS received,
       (r.at_ns - s.sent_ns) / 1000 AS latency_us,
       (r.at_ns - s.intended_ns) / 1000 AS delivery_latency_us,
       (c.at_ns - s.sent_ns) / 1000 AS confirm_latency_us,
       s.insert_ns / 1000 AS insert_duration_us,
       r.arrivals
FROM (SELECT * FROM messages WHERE kind = 'sent') s
LEFT JOIN (SELECT run_id, producer, sequence, min(at_ns) AS at_ns
           FROM messages WHERE kind = 'confirmed' GROUP BY run_id, producer, sequence) c
  USING (run_id, producer, sequence)
LEFT JOIN (SELECT run_id, producer, sequence, subscription, min(destination) AS destination,
                  min(at_ns) AS at_ns, count(*) AS arrivals
           FROM messages WHERE kind = 'received' AND producer IS NOT NULL
           GROUP BY run_id, producer, sequence, subscription) r
  USING (run_id, producer, sequence);
