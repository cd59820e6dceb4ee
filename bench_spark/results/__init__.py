"""From merged events to a result people can trust. Pure: no Spark, no broker, no clock."""
